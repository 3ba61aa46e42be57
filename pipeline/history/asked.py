"""The calls of one exchange by id, so that a result finds its call at once, however many calls there are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pipeline.history.ids import made_id
from pipeline.history.pieces import Piece
from pipeline.model import ToolUse


class Call(Struct, omit_defaults=True):
    """A tool call: its place among the assistant's pieces, its id in the input, and its result's place, if any."""

    at: int
    original: str
    result: int = -1
    real: bool = False

    def block(self, assistant: Sequence[Piece]) -> ToolUse:
        """The call itself, among the pieces of the turn that made it; with the id that it has in the output."""
        block = assistant[self.at].block
        assert isinstance(block, ToolUse)  # noqa: S101  calls point at nothing else
        return block


class Asked:
    """The calls under one id, in order. A call that has its result never loses it again, so nobody looks back."""

    __slots__ = ("_compared", "_inputs", "_unreal", "_waiting", "calls")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._waiting = self._unreal = self._compared = 0
        self._inputs: set[tuple[str, bytes]] = set()

    @property
    def waiting(self) -> Call | None:
        """The first call without a result, else the first without a real one, if any."""
        calls = self.calls
        while self._waiting < len(calls) and calls[self._waiting].result >= 0:
            self._waiting += 1
        if self._waiting < len(calls):
            return calls[self._waiting]
        while self._unreal < len(calls) and calls[self._unreal].real:
            self._unreal += 1
        return calls[self._unreal] if self._unreal < len(calls) else None

    def holds(self, assistant: Sequence[Piece], call: ToolUse) -> bool:
        """Whether one of the calls, which the assistant's pieces have, asks for the same as this one."""
        for other in self.calls[self._compared :]:
            self._inputs.add(_asks_for(other.block(assistant)))
        self._compared = len(self.calls)
        return _asks_for(call) in self._inputs


class AskedIndex:
    """The calls of an exchange by the id that they came under, and by the one that their tool's name makes."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self._indexed = 0
        self._by_id: dict[str, Asked] = {}
        self._by_name: dict[str, Asked] = {}
        self._real = 0

    def find(self, assistant: Sequence[Piece], original: str, *, by_name: bool) -> Asked | None:
        """The calls under an id, else, ``by_name``, those of the tool that a made id names, if there are any."""
        for call in self.calls[self._indexed :]:
            self._by_id.setdefault(call.original, Asked()).calls.append(call)
            self._by_name.setdefault(made_id(call.block(assistant).name), Asked()).calls.append(call)
        self._indexed = len(self.calls)
        return self._by_id.get(original) or (self._by_name.get(original) if by_name else None)

    @property
    def answered(self) -> bool:
        """Whether every call has a real result."""
        while self._real < len(self.calls) and self.calls[self._real].real:
            self._real += 1
        return self._real == len(self.calls)


def _asks_for(call: ToolUse) -> tuple[str, bytes]:
    """A call's name and its input, in one order of keys and one spelling of each value."""
    data = bytes(call.input)
    try:
        return call.name, msgspec.json.encode(msgspec.json.decode(data), order="deterministic")
    except msgspec.MsgspecError:
        # A number that is out of range for us.
        return call.name, data
