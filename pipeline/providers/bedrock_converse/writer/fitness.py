"""Selects the blocks that may be sent back through Converse: its own, and reasoning at its place in its turn.

Blocks without a canonical form are sent back only if they are well-formed. Reasoning is sent back to the service that
wrote it, first in its turn, and for Claude with its signature (BED-18) and unchanged: a turn keeps all of its reasoning
or none.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock, is_point
from reknit.pipeline.model import Block, Issuer, RedactedThinking, Thinking, Turn, Unknown
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.targets.bound import NOT_VOID, Void, is_void
from reknit.pipeline.targets.media import decodes
from reknit.pipeline.targets.signatures import has_foreign_signature

NAME: Final = "bedrock-converse"


class _Exact(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Takes no key that it does not name."""


_Base64: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]+={0,2}$")]


class _CachePoint(_Exact, frozen=True):
    type: Literal["default"]
    ttl: Literal["5m", "1h"] = "5m"


class _GuardText(_Exact, frozen=True):
    text: Annotated[str, Meta(pattern=r"\S")]
    qualifiers: list[Literal["grounding_source", "query", "guard_content"]] = []


class _GuardData(_Exact, frozen=True):
    bytes: _Base64


class _GuardImage(_Exact, frozen=True):
    format: Literal["png", "jpeg"]
    source: _GuardData


class _Guard(_Exact, frozen=True):
    """A union: one of both is set."""

    text: _GuardText | UnsetType = UNSET
    image: _GuardImage | UnsetType = UNSET


class _Location(_Exact, frozen=True):
    uri: Annotated[str, Meta(pattern=r"^s3://[a-z0-9][.a-z0-9-]{1,61}[a-z0-9](/.*)?$", max_length=1024)]
    bucket_owner: Annotated[str, Meta(pattern=r"^[0-9]{12}$")] = "000000000000"


class _InS3(_Exact, frozen=True):
    s3_location: _Location


class _Error(_Exact, frozen=True):
    message: str = ""


class _Image(_Exact, frozen=True):
    format: Literal["png", "jpeg", "gif", "webp"]
    source: _InS3
    error: _Error = _Error()


class _Said(_Exact, frozen=True):
    text: Annotated[str, Meta(pattern=r"\S")]


class _Source(_Exact, frozen=True, omit_defaults=True):
    """The location of the data: exactly one of these (``holds_one``)."""

    bytes: _Base64 | UnsetType = UNSET
    s3_location: _Location | UnsetType = UNSET
    text: Annotated[str, Meta(pattern=r"\S")] | UnsetType = UNSET
    content: Annotated[list[_Said], Meta(min_length=1)] | UnsetType = UNSET

    def holds_one(self, *names: str) -> bool:
        """Return True if exactly one field is set, one of ``names``."""
        there = [name for name in self.__struct_fields__ if getattr(self, name) is not UNSET]
        return len(there) == 1 and there[0] in names and (self.bytes is UNSET or decodes(self.bytes))


class _Video(_Exact, frozen=True):
    # Nova was recorded to take the media type as well.
    format: Annotated[str, Meta(pattern=r"^(video/)?(mkv|mov|mp4|webm|flv|mpeg|mpg|wmv|three_gp)$")]
    source: _Source


class _Audio(_Exact, frozen=True):
    format: Literal[
        "mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "mkv", "mka", "x-aac", "m4a", "mpeg", "mpga", "pcm", "webm"
    ]
    source: _Source
    error: _Error = _Error()


class _Quoted(_Exact, frozen=True):
    text: str


class _Citation(_Exact, frozen=True):
    title: str = ""
    source: str = ""
    source_content: list[_Quoted] = []
    location: dict[str, dict[str, int | str]] = {}


class _Citations(_Exact, frozen=True):
    content: Annotated[list[_Said], Meta(min_length=1)]
    citations: list[_Citation] = []


class _Switch(_Exact, frozen=True):
    enabled: bool


class _Document(_Exact, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    source: _Source
    format: Literal["pdf", "csv", "doc", "docx", "xls", "xlsx", "html", "txt", "md"] = "txt"
    context: str = ""
    citations: _Switch = _Switch(enabled=False)


class _SearchResult(_Exact, frozen=True):
    source: str
    title: str
    content: Annotated[list[_Said], Meta(min_length=1)]
    citations: _Switch = _Switch(enabled=False)


class _ServerCall(_Exact, frozen=True):
    tool_use_id: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:-]{1,64}$")]
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    input: dict[str, Raw]
    type: Literal["server_tool_use"]


class _ServerResult(_Exact, frozen=True):
    tool_use_id: str
    content: list[dict[str, Raw]]
    type: str
    status: Literal["success", "error"] = "success"


_IN_MESSAGES: Final[Mapping[str, type[Struct]]] = MappingProxyType(
    {
        "cachePoint": _CachePoint,
        "guardContent": _Guard,
        "image": _Image,
        "video": _Video,
        "audio": _Audio,
        "document": _Document,
        "citationsContent": _Citations,
        "searchResult": _SearchResult,
        "toolUse": _ServerCall,
        "toolResult": _ServerResult,
    }
)
_IN_RESULTS: Final = frozenset({"image", "document", "searchResult", "video"})
_OF_SERVED_TOOLS: Final = frozenset({"toolUse", "toolResult"})
# Images by S3 location (BED-23) and videos at all (BED-24), which Claude was recorded to refuse, and tools that the
# service runs, which it does not have; in results Nova was recorded to refuse videos (BED-25).
_NOT_FOR_CLAUDE: Final = _OF_SERVED_TOOLS | {"image", "video"}
# Blocks that only a system message may hold.
SYSTEM_BLOCKS: Final = frozenset({"toolAddition", "toolRemoval"})


def own_member(block: Unknown, *, inner: bool, model: str) -> bool:
    """True if a block is a well-formed member of Converse's union that ``model`` takes, ``inner`` to a result."""
    if block.kind in SYSTEM_BLOCKS:
        return not inner  # whatever it names, only the service knows whether it is there
    shape = _IN_MESSAGES.get(block.kind)
    if shape is None or (inner and block.kind not in _IN_RESULTS):
        return False
    if block.kind in _NOT_FOR_CLAUDE and "claude" in model:
        return False
    if inner and block.kind == "video" and "nova" in model:
        return False
    try:
        keys = msgspec.json.decode(block.raw, type=dict[str, Raw])
        member = msgspec.json.decode(keys.pop(block.kind, b""), type=shape)
    except msgspec.DecodeError:
        return False
    return not keys and _whole(member)


class _Id(Struct, frozen=True, rename="camel"):
    tool_use_id: str


class _Half(Struct, frozen=True, rename="camel"):
    """Half of what a tool that the service runs leaves in a turn."""

    tool_use: _Id | UnsetType = UNSET
    tool_result: _Id | UnsetType = UNSET


def unpaired_halves(message: Message, model: str) -> set[int]:
    """The pieces that are a call of the service's own tool without its result in this turn, or the other half alone."""
    halves: set[int] = set()
    waiting: dict[str, int] = {}
    for at, piece in enumerate(message.pieces):
        block = piece.block
        if not isinstance(block, Unknown) or block.kind not in _OF_SERVED_TOOLS:
            continue
        halves.add(at)
        if message.role == "user" or not own_member(block, inner=False, model=model):
            continue
        half = msgspec.json.decode(block.raw, type=_Half)
        if half.tool_use is not UNSET:
            waiting[half.tool_use.tool_use_id] = at
        elif half.tool_result is not UNSET and half.tool_result.tool_use_id in waiting:
            halves -= {at, waiting.pop(half.tool_result.tool_use_id)}
    return halves


def _whole(member: Struct) -> bool:
    """Return True if a union in a member has exactly one of its fields."""
    if isinstance(member, _Guard):
        return (member.text is UNSET) != (member.image is UNSET)
    if isinstance(member, (_Video, _Audio)):
        return member.source.holds_one("bytes", "s3_location")
    return not isinstance(member, _Document) or member.source.holds_one("bytes", "s3_location", "text", "content")


def named(block: Unknown, name: str) -> Unknown:
    keys = msgspec.json.decode(block.raw, type=dict[str, dict[str, Raw]])
    keys["document"]["name"] = Raw(msgspec.json.encode(name))
    return Unknown(kind=block.kind, raw=Raw(msgspec.json.encode(keys)))


class _Named(Struct, frozen=True):
    name: str


class _Holder(Struct, frozen=True):
    document: _Named


def name_of(block: Unknown) -> str:
    """The name of a document that ``own_member`` has passed."""
    return msgspec.json.decode(block.raw, type=_Holder).document.name


# Families that are known to sign no reasoning.
_UNSIGNED = ("nova", "gpt-oss", "qwen", "kimi", "minimax")


def fit_reasoning(
    pieces: list[TrackedBlock],
    changed: Collection[int],
    model: str,
    endpoint: Endpoint,
    book: FixLog,
    *,
    void: Void = NOT_VOID,
    in_place: bool = False,
) -> list[TrackedBlock]:
    """A message's pieces, reasoning that may be sent to an endpoint first; ``changed`` turns have lost a block.

    The reasoning of ``void`` messages may not be sent. ``in_place``: reasoning that is bound to the blocks before it
    stays where it is; it does not end a message.
    """
    reasoning = [at for at, piece in enumerate(pieces) if isinstance(piece.block, (Thinking, RedactedThinking))]
    if not reasoning:
        return pieces
    faults = {at: _fault_in(pieces[at], changed, model, endpoint, void) for at in reasoning}
    unfit = {at: code for at, code in faults.items() if code and book.makes(code)}
    if in_place:
        unfit |= dict.fromkeys(_trailing(pieces, unfit), "thinking_trailing") if book.makes("thinking_trailing") else {}
    broken = {pieces[at].turn for at in unfit} if book.makes("thinking_of_changed_turn") else ()
    for at in reasoning:
        if pieces[at].turn in broken:
            unfit.setdefault(at, "thinking_of_changed_turn")
    for at, code in sorted(unfit.items()):
        book.drop(code, pieces[at])
    if len(unfit) == len(reasoning):
        return [piece for at, piece in enumerate(pieces) if at not in unfit]
    kept = [at for at in reasoning if at not in unfit]
    alone = all(at in unfit or at in kept or is_point(piece.block) for at, piece in enumerate(pieces))
    if alone and book.makes("thinking_trailing"):
        for at in kept:
            book.drop("thinking_trailing", pieces[at])
        kept = []
    if in_place or not book.makes("thinking_moved"):
        return [piece for at, piece in enumerate(pieces) if at in kept or at not in reasoning]
    rest = [at for at in range(len(pieces)) if at not in reasoning]
    first = [book.change("thinking_moved", pieces[at]) if rest and rest[0] < at else pieces[at] for at in kept]
    return [*first, *(pieces[at] for at in rest)]


def _trailing(pieces: Sequence[TrackedBlock], unfit: Container[int]) -> list[int]:
    """The places of reasoning after which nothing of a message stays."""
    found = []
    for at in range(len(pieces) - 1, -1, -1):
        if not isinstance(pieces[at].block, (Thinking, RedactedThinking)) and not is_point(pieces[at].block):
            break
        if not is_point(pieces[at].block) and at not in unfit:
            found.append(at)
    return found


def reasoning_stays(turn: Turn, model: str, endpoint: Endpoint, void: Void = NOT_VOID) -> bool:
    """Return True if all reasoning of a valid turn is first in it, and may be sent to an endpoint."""
    others = 0
    for block in turn.blocks:
        if not isinstance(block, (Thinking, RedactedThinking)):
            others += 1
        elif others or reasoning_fault(block, turn.index, model, endpoint, void):
            return False
    return others > 0


def _fault_in(piece: TrackedBlock, changed: Collection[int], model: str, endpoint: Endpoint, void: Void) -> str:
    fault = reasoning_fault(piece.block, piece.turn, model, endpoint, void)
    return fault or ("thinking_of_changed_turn" if piece.turn in changed else "")


def reasoning_fault(block: Block, index: int, model: str, endpoint: Endpoint, void: Void) -> str:
    """Return the code of the fix that drops reasoning of the message of an index; ``""`` if it may be sent back."""
    return _fault(block, model, endpoint) or ("reasoning_foreign" if is_void(void, index) else "")


def _fault(block: Block, model: str, endpoint: Endpoint) -> str:
    assert isinstance(block, (Thinking, RedactedThinking))  # noqa: S101  the callers looked
    if "deepseek" in model:
        return "thinking_dropped"
    if not isinstance(block.issuer, Issuer) or block.issuer.provider != NAME or not _same(block.issuer.model, model):
        return "thinking_foreign"
    if has_foreign_signature(block, endpoint):
        return "reasoning_foreign"
    if isinstance(block, RedactedThinking):
        return "" if block.data and decodes(block.data) else "thinking_unsigned"
    if not block.thinking.strip():
        return "thinking_empty"
    signed = block.signature is not UNSET and bool(block.signature)
    return "" if signed or any(name in model for name in _UNSIGNED) else "thinking_unsigned"


def _same(issuer: str | None, model: str) -> bool:
    return not issuer or not model or issuer.lower() in model or model in issuer.lower()
