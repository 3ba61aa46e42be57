"""The blocks that a shape has a place for, and a fix for each thing that it has none for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.history.frameworks.base import word
from reknit.pipeline.history.pieces import ANTHROPIC, GEMINI, block_path, is_native, native_type, tool_id
from reknit.pipeline.history.readers.fields import EMPTY_OBJECT, as_object, is_cut
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import RESULT_BLOCKS, Inner, Placed
from reknit.pipeline.history.wrapped_inputs import object_input
from reknit.pipeline.history.writers.base import MAKER, Holds, Place, has
from reknit.pipeline.history.writers.values import as_json_text, as_text, is_json, is_seal, source_of
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    Own,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)
from reknit.pipeline.targets.signatures import issuer_of

IMAGE: Final = "[Image left out]"
DOCUMENT: Final = "[Document left out]"
DOCUMENT_TITLE: Final = "document"
"""The title of a document that has none, where each must have one."""
_NULL: Final = Raw(b"null")
# The members of a reasoning item that frameworks take apart.
_OF_ITEMS: Final = frozenset({"id", "summary", "encrypted_content", "status"})


class Keeping:
    """Decides block by block what of a history a shape keeps."""

    def __init__(self, holds: Holds, model: str | None = None) -> None:
        self.holds = holds
        is_makers = bool(holds.maker) and issuer_of(model) in ("", holds.maker)
        self._model = model if is_makers else None
        self.fixes: list[Fix] = []
        # The tool of the last call without an id.
        self._unnamed = ""

    def of_turn(self, turn: Turn) -> list[Placed]:
        """Return the blocks of a turn that are kept, each with its place in the input."""
        placed = [(block, block_path(turn, at)) for at, block in enumerate(turn.blocks)]
        if turn.own is not UNSET and turn.own.provider not in self.holds.own:
            self._lose_own(turn.own, turn.place)
        if turn.role == "system":
            return self._system(turn, placed)
        return self._without_loose_seals([each for block, path in placed for each in self._block(turn, block, path)])

    def lose(self, code: str, path: str, block: object, detail: str = "") -> None:
        named = tool_id(block) if isinstance(block, (ToolUse, ToolResult)) else ""
        self.fixes.append(make(code, path, before=block, detail=detail, tool_id=named))

    def _lose_own(self, own: Own, path: str) -> None:
        # An item's id is the turn's, and its status says that it is complete.
        members = [name for name in own.members if name not in ("id", "status")]
        if members:
            self.lose("field_dropped", path, own.members, ", ".join(members))

    def _system(self, turn: Turn, placed: Sequence[Placed]) -> list[Placed]:
        texts: list[Placed] = []
        for block, path in placed:
            if not self.holds.system:
                self.lose("field_dropped", path, block, "system")
            elif isinstance(block, Text):
                texts += self._text(turn, block, path)
            else:
                self.lose("system_media_dropped", path, block)
        return texts

    def _block(self, turn: Turn, block: Block, path: str) -> list[Placed]:
        match block:
            case Text():
                return self._text(turn, block, path)
            case Image() | Document():
                return [(self._medium(block, path, turn.role), path)]
            case Thinking():
                return self._thinking(block, path)
            case RedactedThinking():
                return self._redacted(block, path)
            case ToolUse():
                return self._call(block, path)
            case ToolResult():
                return [(self._result(block, path), path)]
            case Unknown():
                return self._unknown(block, path, turn.role)

    def _members(
        self, block: Text | Image | Document | ToolUse | ToolResult, path: str, place: Place = "result"
    ) -> None:
        """Record the members of a block that are left out."""
        if block.cache_control not in (UNSET, _NULL) and not self._has_mark(block, place):
            self.lose("cache_mark_dropped", path, block.cache_control)
        if block.own is not UNSET and not self._has_own(block.own):
            self._lose_own(block.own, path)

    def _has_own(self, own: Own) -> bool:
        holds = self.holds
        return own.provider in holds.own and (not own.kind or not holds.own_types or own.kind in holds.own_types)

    def _has_mark(self, block: Block, place: Place) -> bool:
        cache = self.holds.cache
        if isinstance(block, Unknown) or block.cache_control is UNSET or not starts_with(block.cache_control, b"{"):
            return False
        return place == "user" and (cache == "all" or (cache == "text" and isinstance(block, Text)))

    def _text(self, turn: Turn, block: Text, path: str) -> list[Placed]:
        self._members(block, path, turn.role)
        citations = block.citations if self.holds.maker == ANTHROPIC else UNSET
        if block.citations is not citations:
            self.lose("citations_dropped", path, block.citations)
        if block.refusal and not self.holds.refusals:
            self.lose("refusal_as_text", path, block.text)
        if not block.text:
            return []
        keeps_mark = self._has_mark(block, turn.role)
        return [
            (
                Text(
                    text=block.text,
                    citations=citations,
                    refusal=block.refusal and self.holds.refusals,
                    structured=block.structured,
                    cache_control=block.cache_control if keeps_mark else UNSET,
                ),
                path,
            )
        ]

    def _medium(self, block: Image | Document, path: str, place: Place) -> Text | Image | Document:
        self._members(block, path, place)
        holds = self.holds
        sources = holds.result_sources if place == "result" else holds.sources
        kind = str(source_of(block).get("type", ""))
        if isinstance(block, Document) and kind == "text" and holds.maker != ANTHROPIC:
            self.lose("document_as_text", path, block)
            heading = f"{block.title}:\n" if block.title else ""
            return Text(text=f"{heading}{source_of(block).get('data', '')}")
        stub, code = (IMAGE, "image_stubbed") if isinstance(block, Image) else (DOCUMENT, "document_stubbed")
        is_heard = holds.typed and str(source_of(block).get("media_type", "")).startswith(("audio/", "video/"))
        is_held = isinstance(block, Image) or holds.documents
        if place not in holds.media or not is_held or (kind not in sources and kind != "text") or is_heard:
            self.lose(code, path, block, f"{kind or 'unknown'} source")
            return Text(text=stub)
        mark = block.cache_control if self._has_mark(block, place) else UNSET
        if isinstance(block, Image):
            return Image(source=block.source, cache_control=mark)
        if holds.maker == ANTHROPIC:
            return replace(block, cache_control=mark, issuer=UNSET, own=UNSET)
        notes = [name for name, value in (("context", block.context), ("citations", block.citations)) if value]
        titled = holds.titles if place != "result" or holds.result_titles else ""
        titled = "" if titled == "all" and kind != "base64" else titled
        if block.title and not titled:
            notes.append("title")
        if notes:
            self.lose("document_notes_dropped", path, block, ", ".join(notes))
        title = (block.title if titled else None) or (DOCUMENT_TITLE if titled == "all" else UNSET)
        return Document(source=block.source, title=title, cache_control=mark)

    # Reasoning.

    def _thinking(self, block: Thinking, path: str) -> list[Placed]:
        holds = self.holds
        provider = MAKER if block.issuer is UNSET else block.issuer.provider
        if not has(holds.thinkers, "" if block.issuer is UNSET and not block.signature else provider):
            self.lose("thinking_dropped", path, block)
            return []
        is_held = holds.thoughts == "all" or (block.own is not UNSET if holds.thoughts == "items" else block.signature)
        if not is_held:
            self.lose("thinking_dropped", path, block)
            return []
        if block.own is not UNSET and block.own.kind:
            if self._has_item(block):
                return [(self._issued(block, path), path)]
            return self._unsigned(replace(block, own=UNSET), path)
        if block.own is not UNSET:
            block = replace(block, own=UNSET)
        if not block.thinking and provider == GEMINI and block.signature:
            if holds.seals:  # whether the next block has a place for it is decided later
                return [(self._issued(block, path), path)]
            self.lose("field_dropped", path, block, "signature")
            return []
        if block.signature and not has(holds.signers, provider):
            return self._unsigned(block, path)
        if not block.thinking and not block.signature:
            self.lose("thinking_empty", path, block)
            return []
        return [(self._issued(block, path), path)]

    def _has_item(self, block: Thinking | RedactedThinking) -> bool:
        """Return True if the shape has a place for a reasoning item of Responses."""
        form, own = self.holds.reasoning_items, block.own
        if own is UNSET or form in {"", "all"}:
            return form == "all"
        if own.members.keys() - _OF_ITEMS:
            return False
        is_sealed = isinstance(block, RedactedThinking) or bool(block.signature)
        summaries = len(msgspec.json.decode(own.members.get("summary", b"[]"), type=list[Raw]))
        if form == "one":
            return summaries <= 1 and ("id" in own.members or is_sealed)
        return "id" in own.members and bool(summaries or is_sealed)

    def _unsigned(self, block: Thinking, path: str) -> list[Placed]:
        if not block.thinking:
            self.lose("thinking_dropped", path, block)
            return []
        self.lose("field_dropped", path, block, "signature")
        return [(self._issued(replace(block, signature=UNSET), path), path)]

    def _redacted(self, block: RedactedThinking, path: str) -> list[Placed]:
        provider = MAKER if block.issuer is UNSET else block.issuer.provider
        holds = self.holds
        is_item = block.own is not UNSET
        is_held = self._has_item(block) if is_item else has(holds.signers, provider) and holds.thoughts != "items"
        if not is_held:
            self.lose("thinking_dropped", path, block)
            return []
        return [(self._issued(block, path), path)]

    def _issued(self, block: Thinking | RedactedThinking, path: str) -> Block:
        """Return reasoning with as much of its issuer as the shape names."""
        issuer, holds = block.issuer, self.holds
        if holds.maker and (issuer is UNSET or issuer.model is None):
            return replace(block, issuer=Issuer(provider=holds.maker, model=self._model) if self._model else UNSET)
        signed = isinstance(block, RedactedThinking) or bool(block.signature) or block.own is not UNSET
        if issuer is UNSET:
            # The canonical form is Anthropic's.
            return replace(block, issuer=Issuer(provider=MAKER)) if signed and holds.issuers else block
        if not (holds.issuers == "all" or (holds.issuers == "signed" and signed)):
            self.lose("field_dropped", path, issuer, f"issuer: {issuer.provider}")
            return replace(block, issuer=UNSET)
        is_plain = block.own is UNSET and "/" not in (issuer.model or "")
        if issuer.model is not None and not (holds.models == "all" or (holds.models == "plain" and is_plain)):
            self.lose("field_dropped", path, issuer, f"issuer: {issuer.model}")
            return replace(block, issuer=replace(issuer, model=None))
        return block

    def _without_loose_seals(self, placed: Sequence[Placed]) -> list[Placed]:
        """Leave out Gemini's signatures that no text or call follows: no part has them."""
        kept: list[Placed] = []
        for at, (block, path) in enumerate(placed):
            if is_seal(block):
                follower = placed[at + 1][0] if at + 1 < len(placed) else None
                if not isinstance(follower, (Text, ToolUse) if self.holds.seals == "all" else ToolUse):
                    self.lose("field_dropped", path, block, "signature")
                    continue
            kept.append((block, path))
        return kept

    # Calls and results.

    def _call(self, block: ToolUse, path: str) -> list[Placed]:
        self._members(block, path)
        holds = self.holds
        caller = block.caller if holds.maker == ANTHROPIC else UNSET
        if block.caller is not caller:
            self.lose("caller_dropped", path, block.caller)
        if block.own is not UNSET and block.own.kind and not self._has_own(block.own):
            self.lose("tool_as_function", path, block)
        given, cut = block.input, block.incomplete
        if cut and not holds.cut_calls:
            self.lose("call_incomplete", path, block, as_text(given))
            return []
        text = as_text(given)
        if cut and holds.cut_calls == "marked":
            given = as_json_text(text)
        elif cut and (not is_cut(text) or is_json(text)):
            # Nothing shows that it was cut.
            self.lose("field_dropped", path, block, "incomplete")
            cut, given = False, Raw(text.encode()) if text.lstrip().startswith("{") else EMPTY_OBJECT
        elif holds.objects and not cut and not starts_with(given, b"{"):
            wrapped = object_input(given)
            self.fixes.append(make("input_wrapped", path, before=given, after=wrapped, tool_id=block.id))
            given = wrapped
        own = block.own if block.own is not UNSET and self._has_own(block.own) else UNSET
        if not block.id:
            self._unnamed = block.name
        call_id = block.id or self._id_made(block, path)
        return [(ToolUse(id=call_id, name=block.name, input=given, incomplete=cut, own=own, caller=caller), path)]

    def _id_made(self, block: ToolUse | ToolResult, path: str) -> str:
        """Return an id for a call or a result without one. Readers of these shapes make the same."""
        made = made_id(self._unnamed)
        self.fixes.append(make("call_id_derived", path, before=block, detail=made))
        return made

    def _result(self, block: ToolResult, path: str) -> ToolResult:
        self._members(block, path)
        content = block.content
        if isinstance(content, list):
            content = self._content(content, path)
        is_error = block.is_error
        has_media = isinstance(content, list) and not all(isinstance(part, Text) for part in content)
        if (
            is_error
            and self.holds.errors == "text"
            and isinstance(content, list)
            and len(content) > 1
            and not has_media
        ):
            self.lose("result_as_text", path, block)
            content = "\n".join(part.text for part in content if isinstance(part, Text))
        if is_error and (self.holds.errors == "" or (self.holds.errors == "text" and has_media)):
            self.lose("field_dropped", path, block, "is_error")
            is_error = False
        own = block.own if block.own is not UNSET and self._has_own(block.own) else UNSET
        call_id = block.tool_use_id or self._id_made(block, path)
        return ToolResult(tool_use_id=call_id, content=content or "", is_error=is_error, own=own)

    def _content(self, parts: Sequence[Inner], path: str) -> list[Inner]:
        kept: list[Inner] = []
        for at, part in enumerate(parts):
            place = f"{path}.content.{at}"
            if isinstance(part, Unknown) and self.holds.maker == ANTHROPIC and part.kind in RESULT_BLOCKS:
                kept.append(replace(part, issuer=UNSET))
            elif isinstance(part, Unknown):
                self.lose(
                    "native_dropped" if part.issuer is not UNSET else "unknown_dropped", place, part.raw, part.kind
                )
            elif isinstance(part, Text):
                self._members(part, place)
                citations = part.citations if self.holds.maker == ANTHROPIC else UNSET
                if part.citations is not citations:
                    self.lose("citations_dropped", place, part.citations)
                kept.append(Text(text=part.text, structured=part.structured, citations=citations))
            else:
                kept.append(self._medium(part, place, "result"))
        texts = [part.text for part in kept if isinstance(part, Text)]
        if not self.holds.texts and len(kept) > 1 and len(texts) == len(kept):
            self.lose("result_as_text", path, kept)
            return [Text(text="\n".join(texts))]
        return kept

    def _unknown(self, block: Unknown, path: str, role: Role) -> list[Placed]:
        holds = self.holds
        issuer = Issuer(provider=holds.maker) if block.issuer is UNSET and holds.maker else block.issuer
        if (
            issuer is not UNSET
            and has(holds.native, issuer.provider)
            and is_native(issuer.provider, block.kind)
            and (role == "assistant" or self._is_users(issuer.provider, block.kind, role))
            and word(members := as_object(block.raw, path), "type") == block.kind
            and (not holds.native_forms or members.keys() in holds.native_forms)
            and (not holds.own_types or block.kind in holds.own_types)
        ):
            return [(replace(block, issuer=UNSET) if holds.maker else block, path)]
        code = "native_dropped" if block.issuer is not UNSET else "unknown_dropped"
        self.lose(code, path, block.raw, block.kind)
        return []

    def _is_users(self, provider: str, kind: str, role: Role) -> bool:
        """Return True if a block of the user's is one that the shape's messages of the user have."""
        return (
            role == "user"
            and (self.holds.maker == provider or self.holds.items)
            and native_type(provider, kind).turn == "user"
        )
