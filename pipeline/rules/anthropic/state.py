"""What the fold over a request's messages knows between two messages. Every part is a value."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from pipeline.rules.anthropic.wire import Message
from pipeline.rules.base import Seen
from pipeline.rules.models import UNKNOWN, Family

# The role of the current run of messages; "" before the first.
Role: TypeAlias = Literal["", "user", "assistant", "system"]


class Head(Struct, frozen=True):
    """What the rules on messages need to know of the rest of the request.

    ``thinking`` is the parameter's ``type``, "" where it is absent. ``chars`` counts the characters that stand before
    the first message when ``messages`` is the last key.
    """

    family: Family = UNKNOWN
    thinking: str = ""
    tools: bool = False
    markers: int = 0
    chars: int = 0
    bytes: int = 0


class Run(Struct, frozen=True):
    """Where the order of roles, calls and results stands. The API merges neighbours of one role into one run.

    Attributes:
        role: whose run it is.
        calls: tool_use id to message index: the calls of this assistant run, or, in a user run, of the assistant run
            directly before it.
        answered: those of ``calls`` that the user run has answered.
        sealed: the user run has held something else than results, so that no result may follow.
        servers: server tool calls without a result: id to message index and tool name.
        loop: the assistant message that opened the current tool loop, and its index.
        results: the last user run held a result.
    """

    role: Role = ""
    calls: dict[str, int] = {}
    answered: frozenset[str] = frozenset()
    sealed: bool = False
    servers: dict[str, tuple[int, str]] = {}
    loop: tuple[int, Message] | None = None
    results: bool = False


class State(Struct, frozen=True):
    """The fold's state after ``index`` messages.

    ``ids`` are all tool_use ids so far; ``wide`` the places (ours, the provider's) of images too wide among many.
    ``last`` is the last message that could be read, at ``last_at``. ``broken`` means that the text could not be read
    on, and nothing more is said.
    """

    head: Head = Head()
    index: int = 0
    chars: int = 0
    bytes: int = 0
    markers: int = 0
    images: int = 0
    wide: tuple[tuple[str, str], ...] = ()
    ids: Seen = Seen()
    run: Run = Run()
    last: Message | None = None
    last_at: int = 0
    tool_blocks: bool = False
    surrogate: bool = False
    broken: bool = False
