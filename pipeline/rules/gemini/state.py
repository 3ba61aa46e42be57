"""What the fold over a request's contents knows between two of them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from pipeline.rules.models import Gemini

# Whose run of neighbouring contents is being read; "" before the first.
Role: TypeAlias = Literal["", "user", "model"]


class Unsigned(Struct, frozen=True):
    """A part with a call, of the current turn, that should carry a signature."""

    path: str
    name: str
    position: int


class State(Struct, frozen=True):
    """What the rules know between two contents.

    Attributes:
        family: the model's.
        role: whose run it is.
        calls: how many calls the last model run holds.
        responses: how many responses the user run after it holds.
        called_at: the last content with calls.
        unsigned: the calls that lack a signature since the user last said something else than responses.
    """

    family: Gemini
    role: Role = ""
    calls: int = 0
    responses: int = 0
    called_at: int = 0
    unsigned: tuple[Unsigned, ...] = ()
