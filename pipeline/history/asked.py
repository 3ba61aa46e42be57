"""The calls of one exchange by id, so that a result finds its call at once, however many calls there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeline.history.ids import made_id
from pipeline.model import ToolUse

if TYPE_CHECKING:
    from pipeline.history.exchanges import Call, Exchange


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

    def holds(self, exchange: Exchange, call: ToolUse) -> bool:
        """Whether one of the calls asks for the same as this one."""
        for other in self.calls[self._compared :]:
            self._inputs.add(_asks_for(exchange.tool_use(other)))
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

    def find(self, exchange: Exchange, original: str, *, by_name: bool) -> Asked | None:
        """The calls under an id, else, ``by_name``, those of the tool that a made id names, if there are any."""
        for call in self.calls[self._indexed :]:
            self._by_id.setdefault(call.original, Asked()).calls.append(call)
            self._by_name.setdefault(made_id(exchange.tool_use(call).name), Asked()).calls.append(call)
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
