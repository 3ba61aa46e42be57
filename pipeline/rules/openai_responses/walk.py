"""One pass over decoded items, a step of the fold, and what the fold knows between two items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from pipeline.rules._openai import bracketed, legal_name, media_type, unsupported_image
from pipeline.rules.base import Seen, Violation
from pipeline.rules.openai_responses import catalogue as rules
from pipeline.rules.openai_responses.wire import (
    KINDS,
    PREFIXES,
    CustomCall,
    CustomOutput,
    FunctionCall,
    FunctionOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    Reference,
    Refusal,
)

_TOOLS: dict[type, str] = {
    FunctionCall: "function call",
    FunctionOutput: "function call",
    CustomCall: "custom tool call",
    CustomOutput: "custom tool call",
}
_OUTPUTS = frozenset(kind for kind, name in KINDS.items() if name.endswith("_output"))


class Head(Struct, frozen=True):
    """What the rules on items need to know of the rest of the request.

    ``chained`` means that calls may stand in a previous response or a conversation; ``stored`` that the provider
    keeps items.
    """

    chained: bool = False
    stored: bool = True


class State(Struct, frozen=True):
    """Where calls, ids and reasoning stand. Every part is a value.

    Attributes:
        open: calls without an output: call_id to index and kind of tool.
        answered: call_ids that have an output.
        ids: the items' ids so far.
        referred: an item reference was seen, which may be a call.
        reasoning: the id and index of reasoning that the item before this one was, "" where it was none.
    """

    head: Head = Head()
    open: dict[str, tuple[int, str]] = {}
    answered: Seen = Seen()
    ids: Seen = Seen()
    referred: bool = False
    reasoning: tuple[str, int] = ("", 0)


class Walk:
    """The machine while a step works on it; its containers are its own copies."""

    __slots__ = ("answered", "found", "ids", "index", "open", "reasoning", "referred", "state")

    def __init__(self, state: State, found: list[Violation]) -> None:
        self.state = state
        self.found = found
        self.open = dict(state.open)
        self.answered: set[str] = set()
        self.ids: set[str] = set()
        self.referred = state.referred
        self.reasoning = state.reasoning
        self.index = 0

    def settle(self) -> State:
        """Return what the next step goes on from."""
        return State(
            head=self.state.head,
            open=self.open,
            answered=self.state.answered.plus(self.answered),
            ids=self.state.ids.plus(self.ids),
            referred=self.referred,
            reasoning=self.reasoning,
        )

    def item(self, item: Item) -> None:
        """Judge one item."""
        kind = item.__class__
        if self.reasoning[0] and kind is not Reasoning:
            self._follow(item)
        if item.id is not None:
            self._id(item.id, kind)
        judge = _JUDGES.get(kind)
        if judge is not None:
            judge(self, item, f"input.{self.index}")

    def _follow(self, item: Item) -> None:
        """Judge what stands behind reasoning."""
        name, at = self.reasoning
        if item.__class__ in _OUTPUTS:
            self.found.append(rules.NO_FOLLOWER.broken(f"input.{at}", id=name))
        elif isinstance(item, Message) and item.role != "assistant":
            self.found.append(rules.USER_FOLLOWS.broken(f"input.{at}", id=name))
        self.reasoning = "", 0

    def _id(self, name: str, kind: type) -> None:
        path = f"input.{self.index}.id"
        if name in self.ids or name in self.state.ids:
            self.found.append(rules.SAME_ID.broken(path, id=name))
        self.ids.add(name)
        prefix = PREFIXES.get(kind, "")
        if not name.startswith(prefix):
            self.found.append(rules.ID_PREFIX.broken(path, at=bracketed(path), id=name, prefix=prefix))

    def close(self) -> None:
        """Judge the end: reasoning that leads nowhere, calls without an output."""
        name, at = self.reasoning
        if name:
            self.found.append(rules.NO_FOLLOWER.broken(f"input.{at}", id=name))
        for call, (index, tool) in self.open.items():
            self.found.append(rules.UNANSWERED.broken(f"input.{index}", tool=tool, id=call))


def _message(walk: Walk, item: Message, path: str) -> None:
    if isinstance(item.content, str):
        return
    for at, part in enumerate(item.content):
        _part(walk, part, f"{path}.content.{at}", mine=item.role == "assistant")


def _part(walk: Walk, part: Any, path: str, *, mine: bool) -> None:  # noqa: ANN401 - any part, or a hole
    kind = part.__class__
    if mine:
        if isinstance(part, Struct) and part.__struct_config__.tag and kind not in (OutputText, Refusal):
            walk.found.append(rules.ASSISTANT_PART.broken(f"{path}.type", value=part.__struct_config__.tag))
    elif kind is InputText:
        return
    if kind is InputImage and unsupported_image(part.image_url or ""):
        walk.found.append(rules.IMAGE_TYPE.broken(f"{path}.image_url"))
    elif kind is InputFile:
        media = media_type(part.file_data or "")
        if media.startswith(("audio/", "video/")):
            where = f"{path}.file_data"
            walk.found.append(rules.FILE_TYPE.broken(where, at=bracketed(where), value=media))


def _call(walk: Walk, item: FunctionCall | CustomCall, path: str) -> None:
    _call_id(walk, item.call_id, path)
    walk.found.extend(judge_name(item.name, f"{path}.name"))
    walk.open[item.call_id] = walk.index, _TOOLS[item.__class__]


def _output(walk: Walk, item: FunctionOutput | CustomOutput, path: str) -> None:
    call, state = item.call_id, walk.state
    _call_id(walk, call, path)
    if walk.open.pop(call, None) is not None:
        walk.answered.add(call)
    elif call in walk.answered or call in state.answered:
        walk.found.append(rules.SECOND_OUTPUT.broken(f"{path}.call_id", at=bracketed(path), id=call))
    elif not (walk.referred or state.head.chained):
        walk.found.append(rules.ORPHAN.broken(f"{path}.call_id", tool=_TOOLS[item.__class__], id=call))
    if not isinstance(item.output, str):
        for at, part in enumerate(item.output):
            _part(walk, part, f"{path}.output.{at}", mine=False)


def _call_id(walk: Walk, call: str, path: str) -> None:
    if len(call) > rules.ID_LENGTH:
        where = f"{path}.call_id"
        long = rules.CALL_ID_TOO_LONG.broken(where, at=bracketed(where), limit=rules.ID_LENGTH, length=len(call))
        walk.found.append(long)


def _reasoning(walk: Walk, item: Reasoning, path: str) -> None:
    walk.reasoning = item.id or "", walk.index
    if item.id and not item.encrypted_content and not walk.state.head.stored:
        walk.found.append(rules.NOT_STORED.broken(f"{path}.id", id=item.id))


def _reference(walk: Walk, item: Reference, path: str) -> None:
    walk.referred = True
    if not walk.state.head.stored:
        walk.found.append(rules.NOT_STORED.broken(f"{path}.id", id=item.id))


_JUDGES: dict[type, Callable[[Walk, Any, str], None]] = {
    Message: _message,
    FunctionCall: _call,
    CustomCall: _call,
    FunctionOutput: _output,
    CustomOutput: _output,
    Reasoning: _reasoning,
    Reference: _reference,
}


def judge_name(name: str, path: str) -> list[Violation]:
    """Judge a tool's name, in the tools or in a call."""
    found: list[Violation] = []
    if not ((name.isidentifier() and name.isascii()) or legal_name(name)):
        found.append(rules.NAME.broken(path, at=bracketed(path)))
    if len(name) > rules.NAME_LENGTH:
        limit = rules.NAME_LENGTH
        found.append(rules.NAME_TOO_LONG.broken(path, at=bracketed(path), limit=limit, length=len(name)))
    return found


def walk_items(state: State, items: Sequence[Item | None], index: int) -> tuple[State, list[Violation]]:
    """Judge decoded items; None stands for one that could not be read and was reported already."""
    found: list[Violation] = []
    walk = Walk(state, found)
    for at, item in enumerate(items, index):
        if item is not None:
            walk.index = at
            walk.item(item)
    return walk.settle(), found


def judge_end(state: State) -> list[Violation]:
    """Judge the end of the input."""
    found: list[Violation] = []
    Walk(state, found).close()
    return found
