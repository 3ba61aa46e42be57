"""Searches for tools in a history: references to undeclared tools, and searches without a tool that searches.

The API validates each reference against the tools of the request (ANT-48). A reference that it would refuse is dropped.
A search is written as text if no reference of it is left, or if no tool searches (ANT-48b).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock
from reknit.pipeline.model import Block, Text, ToolResult, Unknown
from reknit.pipeline.targets import Setting, legal_name

REFERENCE: Final = "tool_reference"
# The names of the tools that search for tools begin with this, and the types of their declarations.
_SEARCHES: Final = "tool_search_tool_"
_CALL: Final = "server_tool_use"
_RESULT: Final = "tool_search_tool_result"
# Represents the names of tools that the request does not show.
_ANY: Final = "*"
_LONGEST_NAME: Final = 128

_encode = msgspec.json.Encoder().encode


class KnownTools(Struct, frozen=True):
    """The names of a request's tools, as they are written, and whether one of them searches for others."""

    names: frozenset[str]
    searches: bool = False

    def plus(self, added: Iterable[str]) -> KnownTools:
        return structs.replace(self, names=self.names.union(added))

    def written_name(self, name: object) -> str:
        """The name under which a tool is declared; ``""`` if it is not."""
        if not isinstance(name, str) or _ANY in self.names or name in self.names:
            return name if isinstance(name, str) else ""
        legal = legal_name(name, _LONGEST_NAME)
        return legal if legal in self.names else ""


def known_tools(setting: Setting) -> KnownTools:
    """The tools that a setting declares; servers may bring others."""
    names = {_ANY} if "mcp_servers" in setting.params else set()
    searches = False
    for tool in setting.tools:
        given: dict[str, Any] = {} if tool.raw is UNSET else msgspec.json.decode(tool.raw)
        kind = given.get("type")
        if kind == REFERENCE:
            continue
        own = bytes(tool.input_schema) == b"null"
        nameless = own and isinstance(kind, str) and "name" not in given
        names.add(_ANY if nameless else legal_name(tool.name, _LONGEST_NAME))
        searches = searches or (isinstance(kind, str) and kind.startswith(_SEARCHES))
    return KnownTools(frozenset(names), searches)


def added_tools(blocks: Iterable[Block]) -> Iterator[str]:
    """The names of the tools that the blocks of a message add, for the messages after it."""
    for block in blocks:
        if not isinstance(block, Unknown):
            continue
        if block.kind == "tool_addition":
            tool = msgspec.json.decode(block.raw).get("tool")
            name = (tool.get("name") or tool.get("tool_name")) if isinstance(tool, dict) else None
            if isinstance(name, str):
                yield name
        elif block.kind == "compaction" and b'"tool_changes"' in bytes(block.raw):
            yield _ANY


def with_known_references(message: Message, tools: KnownTools, book: FixLog) -> Message:
    """The message with references to known tools alone; an assistant's turn that loses one is changed."""
    if not any(_may_refer(piece.block) for piece in message.pieces):
        return message
    as_text = _searches_as_text(message.pieces, tools) if book.makes("tool_search_as_text") else set()
    pieces = [_known(piece, tools, as_text, book) for piece in message.pieces]
    changed = {new.turn for new, old in zip(pieces, message.pieces, strict=True) if new is not old}
    if message.role != "assistant" or not changed:
        return structs.replace(message, pieces=pieces)
    return structs.replace(message, pieces=pieces, changed=message.changed | changed)


def _may_refer(block: Block) -> bool:
    if isinstance(block, ToolResult):
        return isinstance(block.content, list) and any(_is_reference(part) for part in block.content)
    return isinstance(block, Unknown) and block.kind in (_CALL, _RESULT)


def _is_reference(part: object) -> bool:
    return isinstance(part, Unknown) and part.kind == REFERENCE


def _searches_as_text(pieces: Sequence[TrackedBlock], tools: KnownTools) -> set[str]:
    """The ids of the searches that are written as text: those whose call and result are in the message."""
    calls: set[str] = set()
    found: set[str] = set()
    for piece in pieces:
        if not isinstance(piece.block, Unknown) or piece.block.kind not in (_CALL, _RESULT):
            continue
        members = msgspec.json.decode(piece.block.raw)
        if piece.block.kind == _CALL:
            calls |= {_text_at(members, "id")} if str(members.get("name")).startswith(_SEARCHES) else set()
            continue
        references = _references(members)
        lost = bool(references) and not any(tools.written_name(_name(each)) for each in references)
        if lost or not tools.searches or _is_broken(members):
            found.add(_text_at(members, "tool_use_id"))
    return (calls & found) - {""}


def _references(result: dict[str, Any]) -> list[Any]:
    content = result.get("content")
    references = content.get("tool_references") if isinstance(content, dict) else None
    return references if isinstance(references, list) else []


def _is_broken(result: dict[str, Any]) -> bool:
    """Return True for references that are no list, which the API cannot read (ANT-35)."""
    content = result.get("content")
    return isinstance(content, dict) and not isinstance(content.get("tool_references"), list | None)


def _text_at(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    return value if isinstance(value, str) else ""


def _name(reference: object) -> object:
    return reference.get("tool_name") if isinstance(reference, dict) else None


def _known(piece: TrackedBlock, tools: KnownTools, as_text: set[str], book: FixLog) -> TrackedBlock:
    block = piece.block
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        return _known_in_result(piece, block, tools, book)
    if not isinstance(block, Unknown) or block.kind not in (_CALL, _RESULT):
        return piece
    members = msgspec.json.decode(block.raw)
    if _text_at(members, "id" if block.kind == _CALL else "tool_use_id") in as_text:
        text = _call_as_text(members) if block.kind == _CALL else _result_as_text(members)
        return book.change("tool_search_as_text", piece, Text(text=text))
    if block.kind == _CALL or not _references(members):
        return piece
    names = [_name(each) for each in _references(members)]
    kept = [
        {**each, "tool_name": tools.written_name(name)}
        for each, name in zip(_references(members), names, strict=True)
        if tools.written_name(name)
    ]
    if kept == _references(members):
        return piece
    content = {**members["content"], "tool_references": kept}
    after = structs.replace(block, raw=Raw(_encode({**members, "content": content})))
    return _changed(piece, after, names, tools, book)


def _known_in_result(piece: TrackedBlock, result: ToolResult, tools: KnownTools, book: FixLog) -> TrackedBlock:
    names: list[object] = []
    content: list[Any] = []
    for part in result.content if isinstance(result.content, list) else ():
        if not _is_reference(part):
            content.append(part)
            continue
        members = msgspec.json.decode(part.raw)  # type: ignore[union-attr]  # a reference
        names.append(_name(members))
        written = tools.written_name(names[-1])
        if written == names[-1]:
            content.append(part)
        elif written:
            content.append(structs.replace(part, raw=Raw(_encode({**members, "tool_name": written}))))
    if content == result.content:
        return piece
    if not content:
        content = [Text(text=_found(names))]
    return _changed(piece, structs.replace(result, content=content), names, tools, book)


def _changed(
    piece: TrackedBlock, after: Block, names: Sequence[object], tools: KnownTools, book: FixLog
) -> TrackedBlock:
    lost = [str(name) for name in names if not tools.written_name(name)]
    code = "tool_reference_dropped" if lost else "tool_name_rewritten"
    renamed = [f"{name} -> {tools.written_name(name)}" for name in names if tools.written_name(name) != name]
    return book.change(code, piece, after, detail=", ".join(lost or renamed))


def _call_as_text(call: dict[str, Any]) -> str:
    return f"[Search for tools: {_encode(call.get('input')).decode()}]"


def _result_as_text(result: dict[str, Any]) -> str:
    content = result.get("content")
    if isinstance(content, dict) and "tool_references" in content:
        return _found([_name(each) for each in _references(result)])
    return f"[Search for tools: {_encode(content).decode()}]"


def _found(names: Iterable[object]) -> str:
    return f"[Tools found: {', '.join(name for name in names if isinstance(name, str)) or 'none'}]"
