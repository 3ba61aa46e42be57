"""Items of the Responses API in a valid run that are sent back unchanged, with their ids.

Each of a message's items must be one that may be sent back next to the others; where one may not, the writer decides
about each block. The conditions are those by which the writer would change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from reknit.pipeline.history.pieces import RESPONSES
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.model import Own, Text, ToolResult, ToolUse, Turn, messages_in
from reknit.pipeline.options import Parts
from reknit.pipeline.providers.openai.writer import content_of, result_content
from reknit.pipeline.providers.openai.writer.parts import own_members
from reknit.pipeline.providers.openai_responses.writer.items import (
    ResponsesParts,
    call_item,
    fits_prefix,
    message_item,
    output_part,
    reasoning_item,
)
from reknit.pipeline.targets import Row
from reknit.pipeline.targets.valid_run import ReasoningFault, input_paths

_Placed: TypeAlias = tuple[Any, Own | UnsetType]
"""A block, and the members of its message where it is the first one there."""

_is_rare_text = unusual(Text, "own", "refusal")
_is_rare_call = unusual(ToolUse, "own")
_is_rare_result = unusual(ToolResult, "content", "own")
_is_special_text = unusual(Text)
_OF_TEXTS: Final = ResponsesParts.members[Text]
_CALLS: Final = frozenset({"", "custom_tool_call"})
_OUTPUTS: Final = frozenset({"", "custom_tool_call_output"})
_ID: Final = msgspec.json.Decoder(str)


class OwnItems(Struct, kw_only=True):
    """Writes the messages of a valid run that hold items of the API itself.

    Attributes:
        asked: the types of open calls whose output has a type of its own, by the calls' ids.
        ids: the ids of the last items.
        remembered: the number of ids that are compared with the next message's.
        is_stored: the provider keeps items.
        drops_ids: ids that may not be sent back are dropped.
        parts: the forms of blocks.
        fault: returns why reasoning cannot go back.
    """

    asked: dict[str, str]
    ids: list[str]
    remembered: int
    is_stored: bool
    drops_ids: bool
    parts: Parts
    fault: ReasoningFault

    def written(self, turn: Turn) -> list[Any] | None:
        """Return the items of a message; None if the writer might change one of them."""
        if not self.drops_ids:
            return None
        blocks = list(_placed(turn))
        items = self._assistants(turn, blocks) if turn.role == "assistant" else self._users(blocks)
        if items is None:
            return None
        known = set(self.ids)
        ids: list[str] = []
        for item in items:
            if "id" in item:
                name = _ID.decode(item["id"])
                if name in known or name in ids or not fits_prefix(item["type"], name):
                    return None
                ids.append(name)
        self._note(blocks)
        self.ids = [*self.ids, *ids][-self.remembered :]
        return items

    def _note(self, blocks: Sequence[_Placed]) -> None:
        """Note the calls whose output has a type of its own, and their outputs."""
        for block, _ in blocks:
            if type(block) is ToolUse and block.own is not UNSET and block.own.kind:
                self.asked = self.asked | {block.id: block.own.kind}
            elif type(block) is ToolResult and block.tool_use_id in self.asked:
                self.asked = {name: kind for name, kind in self.asked.items() if name != block.tool_use_id}

    def _assistants(self, turn: Turn, blocks: Sequence[_Placed]) -> list[Any] | None:
        items: list[Any] = []
        texts: list[Text] = []
        members: Own | UnsetType = UNSET
        for at, (block, of_message) in enumerate(blocks):
            if type(block) is Text:
                if _is_rare_text(block) or not _is_own(block.own, _OF_TEXTS) or not _is_own(of_message):
                    return None
                members = members if texts else of_message
                texts.append(block)
                continue
            if of_message is not UNSET:
                return None
            if texts:
                items.append(_message(texts, members))
                texts = []
            item = self._call(block) if type(block) is ToolUse else self._reasoning(turn, blocks, at)
            if item is None:
                return None
            items.append(item)
        return [*items, _message(texts, members)] if texts else items

    def _call(self, use: ToolUse) -> dict[str, Any] | None:
        if _is_rare_call(use) or not _is_own(use.own) or (use.own is not UNSET and use.own.kind not in _CALLS):
            return None
        return call_item(use)

    def _reasoning(self, turn: Turn, blocks: Sequence[_Placed], at: int) -> dict[str, Any] | None:
        """Return reasoning that may go back, and is followed by what it led to."""
        block = blocks[at][0]
        if self.fault(block, turn) or block.cache_control is not UNSET or not _is_own(block.own):
            return None
        following = next((each for each in blocks[at + 1 :] if type(each[0]) in (Text, ToolUse)), None)
        if following is None:
            return None
        item = reasoning_item(block)
        after, of_message = blocks[at + 1]
        is_plain = type(after) is Text and "id" not in own_members(of_message)
        return None if self.is_stored and is_plain and "id" in item else item

    def _users(self, blocks: Sequence[_Placed]) -> list[Any] | None:
        items: list[Any] = []
        texts: list[Text] = []
        for block, of_message in blocks:
            if of_message is not UNSET:
                return None
            if type(block) is ToolResult:
                item = self._output(block)
                if item is None:
                    return None
                items.append(item)
            elif type(block) is Text and not _is_special_text(block):
                texts.append(block)
            else:
                return None
        if texts:
            items.append(message_item("user", content_of(texts, self.parts), {}))
        return items

    def _output(self, result: ToolResult) -> dict[str, Any] | None:
        kind = "" if result.own is UNSET else result.own.kind
        if _is_rare_result(result) or not _is_own(result.own) or kind not in _OUTPUTS:
            return None
        # Only an item's own type decides. The writer looks for the type of its call's output in other cases.
        if not kind and result.tool_use_id in self.asked:
            return None
        inner = result.content if type(result.content) is list else ()
        if any(type(part) is not Text or _is_special_text(part) for part in inner):
            return None
        content = result_content(result, self.parts)
        named = {"type": kind or "function_call_output", "call_id": result.tool_use_id, "output": content}
        return named | own_members(result.own)


def _placed(turn: Turn) -> Iterator[_Placed]:
    """Yield the blocks of a turn, each with the members of its message where it is the first one there."""
    for item in messages_in(turn):
        own = item.own
        for block in item.blocks:
            yield block, own
            own = UNSET


def _is_own(own: Own | UnsetType, names: frozenset[str] | None = None) -> bool:
    """Return True if members are the API's, and of these names if only some have a place."""
    return own is UNSET or (own.provider == RESPONSES and (names is None or own.members.keys() <= names))


def _is_string(texts: Sequence[Text], of_message: Own | UnsetType) -> bool:
    """Return True if a message of the assistant's is written as a string: one text without members, and no id."""
    return len(texts) == 1 and not (texts[0].refusal or "id" in own_members(of_message) or own_members(texts[0].own))


def _message(texts: Sequence[Text], of_message: Own | UnsetType) -> dict[str, Any]:
    content: Any = texts[0].text if _is_string(texts, of_message) else [output_part(text) for text in texts]
    return message_item("assistant", content, own_members(of_message))


def own_rows(turn: Turn, first: int) -> list[Row]:
    """Return the origins of a turn's blocks, whose first item is that of index ``first`` in the body."""
    rows: list[Row] = []
    item = first
    said: list[tuple[str, Text]] = []
    members: Own | UnsetType = UNSET
    for path, (block, of_message) in zip(input_paths(turn), _placed(turn), strict=True):
        if type(block) is Text:
            members = members if said else of_message
            said.append((path, block))
            continue
        if said:
            rows += _rows_of_message(said, members, item)
            said, item = [], item + 1
        rows.append((path, "kept", "", f"input.{item}.output" if type(block) is ToolResult else f"input.{item}"))
        item += 1
    return [*rows, *_rows_of_message(said, members, item)]


def _rows_of_message(said: Sequence[tuple[str, Text]], members: Own | UnsetType, item: int) -> list[Row]:
    place = f"input.{item}.content"
    if _is_string([text for _, text in said], members):
        return [(path, "kept", "", place) for path, _ in said]
    return [(path, "kept", "", f"{place}.{at}") for at, (path, _) in enumerate(said)]
