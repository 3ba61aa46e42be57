"""Tool calls and their results: the id of each call, the call that a result answers, and placeholders for results.

Ids are unique in the whole request, legal on every target, and rewritten injectively. A legal, unused id stays
unchanged. Any other gets a new one made from itself and a digest, so the same history gives the same ids, and
``call.1`` never takes the place of ``call_1``.

Frameworks that find a call without a result write a text in its place. Such a text keeps a request valid, but it is not
the tool's result: if the real result is present too, or arrives later, it replaces the placeholder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Struct

from reknit.pipeline.history.pieces import FixLog, TrackedBlock
from reknit.pipeline.model import Document, Image, Text, ToolResult, ToolUse, Unknown

# The strictest alphabet and length among the targets: `^[a-zA-Z0-9_-]+$` (Anthropic), 1..64 (Bedrock, Responses).
LONGEST_ID = 64
_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}").fullmatch
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_ILLEGAL_RUN = re.compile(r"[^a-zA-Z0-9_-]+")
_STEM, _DIGEST = 48, 12


def is_legal(candidate: str) -> bool:
    """Return True if every provider takes an id."""
    return _LEGAL(candidate) is not None


def made_id(name: str) -> str:
    """The id of a call that came without one, and of its result, which names the tool too."""
    return f"call_{name}"


def derived_id(name: str) -> str:
    """As `made_id`, legal, for shapes in which calls and results have ids, where one has none."""
    return f"call_{_ILLEGAL.sub('_', name)}"


# The id of a result that names neither its call nor a tool.
NO_ID = ""


class SettledCall(Struct, frozen=True, array_like=True):
    """A call that will not change any more: its id in the input, in the output, and whether a real result came."""

    original: str
    final: str
    answered: bool


IdWriter: TypeAlias = Callable[[str], str]
"""How a target writes an id that is longer than it takes, or of another alphabet."""


class IdTable:
    """The tool ids of one session.

    ``id_writers`` are the functions by which its targets derive ids. Ids that would be equal after any of them are kept
    different, so a target may shorten each id independently and never gives two calls one id. ``again``: only the calls
    of one turn need different ids.
    """

    def __init__(self, id_writers: Sequence[IdWriter] = (), *, again: bool = False) -> None:
        self._again = again
        self._images = [(image, set[str]()) for image in id_writers]
        self._used: set[str] = set()
        self._rewritten: dict[str, int] = {}
        # The last settled call of each id; None for one that stays as it is, and is answered.
        self._settled: dict[str, SettledCall | None] = {}
        # Earlier calls of an id, where there were some.
        self._earlier: dict[str, list[SettledCall | None]] = {}

    def begin_turn(self) -> None:
        """Let the calls of a new turn of the assistant's have the ids of earlier ones, where they may."""
        if self._again:
            self._used.clear()
            for _, taken in self._images:
                taken.clear()

    def claim(self, original: str, *, taken: bool = False) -> str:
        """The output's id for a new call: the original where it can stay, else one that is made from it."""
        if not taken and _LEGAL(original) and self._is_free(original):
            self._take_id(original)
            return original
        count = before = self._rewritten.get(original, 0)
        while not self._is_free(final := _derive(original, count)):
            count += 1
        self._rewritten[original] = before + 1
        self._take_id(final)
        return final

    def admits(self, ids: Sequence[str]) -> bool:
        """Return True if legal ids that are different can all stay as they are, for each of the session's targets."""
        return self._used.isdisjoint(ids) and all(
            len(images := set(map(image, ids))) == len(ids) and taken.isdisjoint(images)
            for image, taken in self._images
        )

    def claim_answered(self, ids: Sequence[str]) -> None:
        """Take legal ids that are admitted, of calls that are answered."""
        self._used.update(ids)
        for image, taken in self._images:
            taken.update(map(image, ids))
        for each in self._settled.keys() & ids:
            self._earlier.setdefault(each, []).append(self._settled[each])
        self._settled.update(dict.fromkeys(ids))

    def settle_call(self, call: SettledCall) -> None:
        """Remember how a call ended, for results that come after it has been settled."""
        if call.original in self._settled:
            self._earlier.setdefault(call.original, []).append(self._settled[call.original])
        self._settled[call.original] = call

    def unsettle_call(self, call: SettledCall) -> None:
        """Take back the call that was settled last, as if it had never been made."""
        earlier = self._earlier.get(call.original)
        if earlier:
            self._settled[call.original] = earlier.pop()
        else:
            self._settled.pop(call.original, None)
        self.take_back(call.original, call.final)

    def take_back(self, original: str, final: str) -> None:
        """Take back a call that has not been settled."""
        if final != original:
            self._rewritten[original] -= 1
        self._used.discard(final)
        for image, taken in self._images:
            taken.discard(image(final))

    def reload(self, call: SettledCall) -> None:
        """Take a call from saved state, in the order in which they were settled."""
        self.reload_open(call.original, call.final)
        self.settle_call(call)

    def reload_open(self, original: str, final: str) -> None:
        """Take a call from saved state that is still open."""
        self._take_id(final)
        if final != original:
            self._rewritten[original] = self._rewritten.get(original, 0) + 1

    def _is_free(self, final: str) -> bool:
        return final not in self._used and all(image(final) not in taken for image, taken in self._images)

    def _take_id(self, final: str) -> None:
        self._used.add(final)
        for image, taken in self._images:
            taken.add(image(final))

    def answered(self, original: str) -> bool | None:
        """Return how the last settled call of this id ended; None if there is none."""
        if original not in self._settled:
            return None
        settled = self._settled[original]
        return settled is None or settled.answered

    def settled_as(self, original: str) -> str:
        """Return the id in the output of the last settled call of this id."""
        settled = self._settled.get(original)
        return original if settled is None else settled.final


def _derive(original: str, count: int) -> str:
    stem = _ILLEGAL_RUN.sub("_", original)[:_STEM] or "call"
    digest = hashlib.sha256(f"{count}:{original}".encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{stem}-{digest}"


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


ORPHAN_MARK = "[Tool result without its call]"


def orphan_pieces(piece: TrackedBlock, result: ToolResult, code: str, book: FixLog) -> list[TrackedBlock]:
    """A result as user text, followed by the media it held."""
    return as_words(piece, result, ORPHAN_MARK, code, book)


def as_words(piece: TrackedBlock, result: ToolResult, mark: str, code: str, book: FixLog) -> list[TrackedBlock]:
    """A result as user text below a line that says so, followed by the media it held."""
    if isinstance(result.content, list):
        texts = [part.text for part in result.content if isinstance(part, Text)]
        media = [(at, part) for at, part in enumerate(result.content) if not isinstance(part, Text)]
    else:
        texts = [] if result.content is UNSET else [result.content]
        media = []
    text = "\n".join([mark, *(text for text in texts if text)])
    flat = book.change(code, piece, Text(text=text))
    return [flat, *(_medium(piece, at, part, code) for at, part in media)]


def _medium(piece: TrackedBlock, at: int, part: Image | Document | Unknown | Text, code: str) -> TrackedBlock:
    path = f"{piece.path}.content.{at}"
    return TrackedBlock(part, piece.turn, path, fate="flattened", code=code, came_as=piece.tool_id)


def same_content(one: TrackedBlock, other: TrackedBlock) -> bool:
    """Return True if two results say the same, whatever the ids they came under."""
    left, right = one.block, other.block
    return (
        isinstance(left, ToolResult)
        and isinstance(right, ToolResult)
        and left.is_error == right.is_error
        and left.content == right.content
    )


# Reknit's own placeholders.
INTERRUPTED = "[No result was recorded for this tool call: it was interrupted, or its result was lost.]"

# Exact texts that frameworks write, and who does. Nothing is matched by pattern: a tool may well return a text that
# merely begins like one of these.
PLACEHOLDERS: Mapping[str, str] = MappingProxyType(
    {
        INTERRUPTED: "this project",
        "[Request interrupted by user]": "Claude Code",
        "[Request interrupted by user for tool use]": "Claude Code",
        "[Tool result missing due to internal error]": "Claude Code",
        "Tool result missing": "agent loops over the Messages API",
        "Tool was interrupted.": "strands-agents: missing tool results",
        "[Tool execution was interrupted]": "opencode: message-v2",
        "Tool execution was interrupted before completion.": "Roo Code, Kilo Code: validateToolResultIds",
        "aborted": "OpenAI Codex: context normalisation",
        "[openclaw] missing tool result in session history; inserted synthetic error result for transcript repair.": (
            "OpenClaw: session-transcript-repair"
        ),
    }
)

# Texts that name the call: ``{name}`` and ``{id}`` are filled in before comparing.
TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "[System: Tool execution skipped/interrupted by user. No result provided for tool '{name}'.]": "LiteLLM",
        "Tool call {name} with id {id} was cancelled - another message came in before it could be completed.": (
            "deepagents: PatchToolCallsMiddleware"
        ),
    }
)


# Longer than any placeholder with a name and an id, and their first characters: they exclude most real results.
LONGEST_PLACEHOLDER = 400
_STARTS = frozenset(text[0] for text in (*PLACEHOLDERS, *TEMPLATES))


def is_placeholder(result: ToolResult, name: str, call_id: str) -> bool:
    """True if a result is one of the published texts and nothing else; ``name`` and ``call_id`` are its call's."""
    content = result.content
    if isinstance(content, list):
        if len(content) != 1 or not isinstance(content[0], Text):
            return False
        content = content[0].text
    if not isinstance(content, str) or len(content) > LONGEST_PLACEHOLDER:
        return False
    start = content[:1]
    if start not in _STARTS and not start.isspace():
        return False
    text = content.strip()
    return text in PLACEHOLDERS or any(
        text == template.replace("{name}", name).replace("{id}", call_id) for template in TEMPLATES
    )
