"""Tool calls and their results: an exchange's calls by id and by tool, and the call that a result answers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from reknit.pipeline.history.call_ids import NO_ID, made_id
from reknit.pipeline.history.pieces import TrackedBlock
from reknit.pipeline.model import ToolUse


class Call(Struct, omit_defaults=True):
    """A tool call: its place among the assistant's pieces, its id in the input, and its result's place, if any.

    Where later results have a place (``late_result``), ``came`` is the number of the turn with its result, and ``seen``
    has the digests of its other real results.
    """

    at: int
    original: str
    result: int = -1
    real: bool = False
    came: int = 0
    seen: list[str] = []

    def block(self, assistant: Sequence[TrackedBlock]) -> ToolUse:
        """The call itself, among the pieces of the turn that made it; with the id that it has in the output."""
        block = assistant[self.at].block
        assert isinstance(block, ToolUse)  # noqa: S101  calls point at nothing else
        return block


class CallsWithId(Struct, gc=False):
    """The calls under one id, in order.

    A call that has its result never loses it, so earlier calls are not read again. ``seen`` has the digests of the real
    results of the first ``digested`` calls.
    """

    calls: list[Call] = []
    seen: set[str] = set()
    digested: int = 0
    _waiting: int = 0
    _unreal: int = 0
    _compared: int = 0
    _inputs: set[tuple[str, bytes]] = set()

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

    def holds(self, assistant: Sequence[TrackedBlock], call: ToolUse) -> bool:
        """Return True if one of the calls, which the assistant's pieces have, asks for the same as this one."""
        for other in self.calls[self._compared :]:
            self._inputs.add(_asks_for(other.block(assistant)))
        self._compared = len(self.calls)
        return _asks_for(call) in self._inputs


class CallIndex(Struct, gc=False):
    """The calls of an exchange by the id that they came under, and by the one that their tool's name makes.

    A result that names nothing answers any of them, in order.
    """

    calls: list[Call]
    _indexed: int = 0
    _by_id: dict[str, CallsWithId] = {}
    _named: int = 0
    _by_name: dict[str, CallsWithId] = {}
    _real: int = 0

    def find(self, assistant: Sequence[TrackedBlock], original: str, *, by_name: bool) -> CallsWithId | None:
        """The calls under an id, else, ``by_name``, those of the tool that a made id names, if there are any."""
        for call in self.calls[self._indexed :]:
            self._by_id.setdefault(call.original, CallsWithId()).calls.append(call)
        self._indexed = len(self.calls)
        return self._by_id.get(original) or (self._find_by_name(assistant, original) if by_name else None)

    def _find_by_name(self, assistant: Sequence[TrackedBlock], original: str) -> CallsWithId | None:
        for call in self.calls[self._named :]:
            self._by_name.setdefault(made_id(call.block(assistant).name), CallsWithId()).calls.append(call)
        self._named = len(self.calls)
        if original == NO_ID:
            self._by_name.setdefault(original, CallsWithId()).calls = self.calls
        return self._by_name.get(original)

    @property
    def answered(self) -> bool:
        """True if every call has a real result."""
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
