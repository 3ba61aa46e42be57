"""The interface of writers. Each provider has a writer of its own.

A writer is prepared for one session's setting, which gives a ``Dialect``. It encodes one message at a time: settled
messages are encoded once and kept, the open end again for each request. A body is ``prefix + separator.join(settled
chunks + the ending's parts) + suffix``.

Names of tools and ids of calls are written in a target's alphabet and length: the same name gives the same result, and
different names never give the same. For ids the structure repair ensures the latter: it never gives a call an id that a
target of the session would write like another's (``reknit.pipeline.history.call_ids.IdTable``).
"""

from __future__ import annotations

import hashlib
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import FixLog, LedgerEntry, Message, TrackedBlock
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Block, Issuer, Role, Text, Tool, Unknown
from reknit.pipeline.options import STRICT, Structure
from reknit.pipeline.policy import Endpoint, KeptReasoning
from reknit.pipeline.targets.bound import Void, is_prefix_bound

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_LEGAL: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME_DIGEST: Final = 10


def legal_name(name: str, longest: int) -> str:
    """``name`` where it is of ``[a-zA-Z0-9_-]`` and short enough, else one made from it and a digest."""
    if len(name) <= longest and _LEGAL.fullmatch(name):
        return name
    stem = _ILLEGAL.sub("_", name)[: longest - _NAME_DIGEST - 1]
    return f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGEST]}"


# `Expected a string with maximum length 40` (OAI-03).
LONGEST_ID: Final = 40
_ID_DIGEST: Final = 12

# `must be a-z, A-Z, 0-9, with a length of 9` (VLM-06).
NINE: Final = 9
_ALPHANUMERIC: Final = string.digits + string.ascii_letters


def shortened(call_id: str) -> str:
    if len(call_id) <= LONGEST_ID:
        return call_id
    return f"{call_id[: LONGEST_ID - _ID_DIGEST - 1]}-{hashlib.sha256(call_id.encode()).hexdigest()[:_ID_DIGEST]}"


def nine(call_id: str) -> str:
    if len(call_id) == NINE and call_id.isalnum() and call_id.isascii():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:16])
    digits = []
    for _ in range(NINE):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return "".join(digits)


Row: TypeAlias = tuple[str, ...]
"""The origin of an output block: input path, outcome, code; then, if a turn is written as several messages or as items,
the block's place in the body (``messages.4.tool_calls.0``, ``input.7``, ``contents.3.parts.1``).
"""


def row(piece: TrackedBlock, place: str = "") -> Row:
    """The origin of a written block, and its ``place`` if that is not its number in its message."""
    known = piece.path, piece.fate, piece.code
    return (*known, place) if place else known


def first_given(rows: Sequence[Row], message: Message) -> tuple[str, str]:
    """The place in the input of the first block of a written message that has one, and the id of its call, if any."""
    path = next((path for path, *_ in rows if path), "")
    return path, next((piece.tool_id for piece in message.pieces if piece.path == path), "")


# Replaces a turn without any content that the target can show.
STUB: Final = "[Nothing of this turn can be shown to this model.]"


class Setting(Struct, frozen=True, kw_only=True):
    """The parts of a request besides the messages: system prompt, tools, model and parameters.

    ``observed`` are the codes of the repairs that are not made (``mend.CODE=observe``). ``endpoints`` and ``reasoning``
    are those of the policy. ``void`` are the messages of each target whose reasoning is void, which become more; None
    where the state has no place for them.
    """

    system: str | Raw | None = None
    tools: tuple[Tool, ...] = ()
    model: str | None = None
    params: dict[str, Raw] = {}
    observed: frozenset[str] = frozenset()
    endpoints: Mapping[str, Endpoint] = MappingProxyType({})
    reasoning: KeptReasoning = "same_issuer"
    void: Mapping[str, Void] | None = MappingProxyType({})

    def is_prefix_bound(self, endpoint: Endpoint) -> bool:
        """True if the reasoning of the model is bound to its prefix, and the state has a place for what was sent."""
        return self.void is not None and is_prefix_bound(self.model, endpoint)

    def void_at(self, endpoint: Endpoint) -> Mapping[str, Void] | None:
        """The messages whose reasoning an endpoint would refuse, by target; None if it does not, or by policy."""
        return self.void if self.reasoning != "keep" and self.is_prefix_bound(endpoint) else None


def is_issued_by(block: Block, providers: Collection[str], model: str | None) -> bool:
    """Return True if one of the ``providers`` wrote a block, and, as far as is known, this model."""
    issuer = UNSET if isinstance(block, Unknown) else block.issuer
    if not isinstance(issuer, Issuer) or issuer.provider not in providers:
        return False
    return not issuer.model or not model or is_same_model(issuer.model, model)


# Names of Bedrock's begin with a vendor, and a region at times: us.anthropic.claude-sonnet-4-5-20250929-v1:0.
_ON_BEDROCK: Final = re.compile(r"(?:[a-z-]+\.)+(?=[a-z])")
_RELEASE: Final = re.compile(r"(?:[-@]\d{8}|-latest)?(?:-v\d+(?::\d+)?)?(?:[:@].*)?$")
_WORDS: Final = re.compile(r"[a-z]+|\d+")


def is_same_model(one: str, other: str) -> bool:
    """Return True if two names are of one model: one is an alias of the other, or a gateway's name for it.

    ``claude-sonnet-4-5``, ``claude-sonnet-4-5-20250929`` and ``anthropic/claude-4.5-sonnet`` are. A model on Bedrock is
    another one, since reasoning is bound to the platform (openclaw/openclaw#110080).
    """
    return one.startswith(other) or other.startswith(one) or _model_key(one) == _model_key(other)


def _model_key(model: str) -> tuple[bool, list[str]]:
    name = model.lower().rpartition("/")[2]
    prefix = _ON_BEDROCK.match(name)
    name = _RELEASE.sub("", name[prefix.end() :] if prefix else name, count=1)
    return prefix is not None, sorted(_WORDS.findall(name))


def without_trailing_space(pieces: list[TrackedBlock], book: FixLog) -> list[TrackedBlock]:
    """Return the pieces of a prefill without trailing whitespace, which no prefill may have."""
    last = pieces[-1].block if pieces else None
    if not isinstance(last, Text) or last.text == last.text.rstrip():
        return pieces
    trimmed = structs.replace(last, text=last.text.rstrip())
    return [*pieces[:-1], book.change("prefill_trimmed", pieces[-1], trimmed)]


def stub_for(message: Message, book: FixLog) -> TrackedBlock:
    """Return the replacement of a message without any content that a target can show, with its fix."""
    book.note_fix("turn_stubbed", message.pieces[0].path)
    return TrackedBlock(Text(text=STUB), -1, "", fate="synthesised", code="turn_stubbed")


_BLOCK: Final = attrgetter("block")


class _Cited(Struct, frozen=True):
    text: str = ""


class _CitedContent(Struct, frozen=True):
    content: list[_Cited]
    citations: Raw = Raw(b"[]")


class _CitedBlock(Struct, frozen=True, rename="camel"):
    citations_content: _CitedContent


_CITED: Final = msgspec.json.Decoder(_CitedBlock)


def in_common_words(message: Message, book: FixLog) -> Message:
    """The message with the words of Converse's cited blocks as text, for a target that has none of them."""
    if Unknown not in map(type, map(_BLOCK, message.pieces)):
        return message
    pieces = [_uncited(piece, book) for piece in message.pieces]
    return message if pieces == message.pieces else structs.replace(message, pieces=pieces)


def _uncited(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    block = piece.block
    if not isinstance(block, Unknown) or block.kind != "citationsContent":
        return piece
    found = decoded(_CITED, block.raw)
    if found is None:
        return piece
    cited = found.citations_content
    text = "".join(part.text for part in cited.content)
    if not text.strip():
        return piece
    return book.change("citations_dropped", piece, Text(text=text), bytes(cited.citations).decode())


class Encoded(Struct, frozen=True, kw_only=True, gc=False):
    """One message in the target's bytes.

    ``data`` has no cache breakpoints; ``marked`` is the same with them, ``marks`` their number. ``state`` is what the
    target carries on to the next message. ``rows`` has one entry for each output block.
    """

    data: bytes
    state: Any = None
    rows: Sequence[Row] = ()
    fixes: Sequence[Fix] = ()
    dropped: Sequence[LedgerEntry] = ()
    marked: bytes = b""
    marks: int = 0


class Ending(Struct, frozen=True, kw_only=True, gc=False):
    """The open end of a request.

    ``prefix`` replaces the dialect's own if the body has another form; nothing of such a body is a prefix of the next.
    ``last`` is the index of the last message in the body, if a turn may be written as several; otherwise the last
    turn's index counts. ``head`` replaces the dialect's own for the rules, if it depends on the messages. ``reset``
    says why the body has another ``prefix``: the code of the fix that changed the head, ``media`` before the text, or
    the ``environment`` that the user's words name.
    """

    parts: Sequence[Encoded]
    suffix: bytes
    prefix: bytes | None = None
    last: int | None = None
    head: bytes | None = None
    reset: str = ""


class Dialect(Protocol):
    """A target, prepared for one setting. ``head`` is the request without its messages, as a JSON object."""

    head: bytes
    prefix: bytes
    separator: bytes
    marks_left: int
    fixes: list[Fix]
    state: Any

    def encode(self, message: Message, state: Any) -> Encoded:  # noqa: ANN401  the target's own
        """Write a message permanently. A message without any content for this target has empty ``data``."""

    def encode_ending(self, messages: Sequence[Message], state: Any, settled: int, *, final: bool) -> Ending:  # noqa: ANN401  the target's own
        """Write the open messages, each after the previous one."""


class ListDialect(ABC):
    """A dialect whose messages are the items of a list, at the end of the body."""

    separator = b","
    marks_left = 0

    @abstractmethod
    def encode_message(self, message: Message, state: Any, *, final: bool) -> Encoded:  # noqa: ANN401  the target's own
        """Write a message; an assistant message that is ``final`` is an answer which the model continues."""

    def encode(self, message: Message, state: Any) -> Encoded:  # noqa: ANN401  the target's own
        return self.encode_message(message, state, final=False)

    def encode_open(
        self,
        messages: Sequence[Message],
        state: Any,  # noqa: ANN401  the target's own
        *,
        final: bool,
        write: Callable[..., Encoded] | None = None,
    ) -> list[Encoded]:
        """Write the open messages, each after the previous one."""
        write = write or self.encode_message
        parts: list[Encoded] = []
        for at, message in enumerate(messages):
            prefill = final and at == len(messages) - 1 and message.role == "assistant"
            parts.append(write(message, state, final=prefill))
            state = parts[-1].state
        return parts

    def encode_ending(self, messages: Sequence[Message], state: Any, settled: int, *, final: bool) -> Ending:  # noqa: ANN401, ARG002  the target's own; most bodies do not depend on it
        return Ending(parts=self.encode_open(messages, state, final=final), suffix=b"]}")


class Writer(Protocol):
    """The writer of requests for one target.

    ``text`` targets take one text. ``tail_rule`` is the rule against a request that ends with the assistant;
    ``tail_rules`` are those that only look at the end, which a restored history (tail=keep) does not have yet.
    """

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> bool: ...

    @property
    def tail_rule(self) -> str: ...

    @property
    def tail_rules(self) -> frozenset[str]: ...

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> Dialect:
        """Get ready for a session; ``system`` are the texts of leading system messages."""


def structure_of(writer: Writer, setting: Setting) -> Structure:
    """Return the structure that the model of a setting takes.

    A writer states it by a method ``structure``; without one, everything is repaired.
    """
    known: Callable[[Setting], Structure] | None = getattr(writer, "structure", None)
    structure = STRICT if known is None else known(setting)
    return without_mends(structure, setting.observed) if setting.observed else structure


_SPEAKERS: Final[frozenset[Role]] = frozenset({"user", "assistant"})
# The structure that a target takes if a repair is not made.
_TAKEN_WITHOUT: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "turns_merged": {"neighbours": _SPEAKERS, "calls_apart": True},
        "leading_dropped": {"assistant_first": True},
        "lead_inserted": {"assistant_first": True},
        "tail_continued": {"assistant_last": "always"},
        "blank_dropped": {"blank": _SPEAKERS},
        "blank_in_result": {"blank_results": True},
        "reasoning_alone": {"reasoning_alone": True},
        "system_inlined": {"system_inside": True, "system_first": True},
    }
)


def without_mends(structure: Structure, observed: frozenset[str]) -> Structure:
    """Return the structure of a history in which the ``observed`` repairs are not made."""
    facts = {name: fact for code in observed for name, fact in _TAKEN_WITHOUT.get(code, {}).items()}
    return structs.replace(structure, observed=observed, **facts)


def images_of(writers: Iterable[Writer], model: str | None) -> list[Callable[[str], str]]:
    """The ways in which the writers write ids for a model, each once.

    A writer that makes ids of its own where it does not take them as they are says how by a method ``call_id``. The
    structure repair keeps ids apart that it would write alike.
    """
    ways: Iterable[Callable[[str | None], Callable[[str], str]] | None] = (
        getattr(writer, "call_id", None) for writer in writers
    )
    return list(dict.fromkeys(way(model) for way in ways if way is not None))
