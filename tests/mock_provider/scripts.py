"""A scripted session: its party, its rounds, and what goes wrong when."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fault: its name in ``faults``, when it happens, and its arguments.

    It happens in a round before the request with the number ``step``. Before the first, the user has not spoken yet.
    """

    name: str
    round: int = 0
    step: int = 0
    given: dict[str, Any] = {}


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A session.

    Attributes:
        name: of the session.
        group: of the reference on refusals.
        party: that it begins with.
        report: that it is modelled on.
        rounds: how many calls each round has before its text.
        faults: in their order.
        refusals: how often it may be refused, besides plain retries.
        healed: the names of the rows that heal it, in any order; none if it must stay refused.
        params: of all requests, besides the party's own.
        needs_session: a body alone cannot be healed.
        late: the refusal arrives after the user has spoken again.
        loss: the content that the model loses, by the reference on refusals.
    """

    name: str
    group: str
    party: str
    report: str
    rounds: list[int]
    faults: list[Fault]
    refusals: int = 1
    healed: list[str] = []
    params: dict[str, Any] = {}
    tools: tuple[str, ...] = ("read",)
    needs_session: bool = False
    late: bool = False
    loss: str = ""


def read_scripts(lines: bytes) -> list[Script]:
    return [msgspec.json.decode(line, type=Script) for line in lines.splitlines() if line.strip()]
