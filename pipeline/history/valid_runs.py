"""Finds the valid runs of turns of a history in one pass.

Most turns of most histories need no repair. A few comparisons for each block find the turns that the machine would
return unchanged, or only without blank texts. Anything else that is unusual ends a run; the machine takes over, and the
next run begins after it. Both paths give the same result, which a property test checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from msgspec import UNSET, Struct, structs

from reknit.pipeline.history.call_ids import LONGEST_ID, is_legal, made_id
from reknit.pipeline.history.clean import with_plain_data
from reknit.pipeline.history.pieces import is_whole
from reknit.pipeline.history.placeholders import LONGEST_PLACEHOLDER, is_placeholder
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    JoinedTurn,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    has_media,
)
from reknit.pipeline.policy import Policy

IsSound: TypeAlias = Callable[[Block], bool]

# Up to this many bytes of ASCII nothing that a reader would have to look for can be wrong with a tool's input.
_SHORT = 256

# The list whose messages are items of Responses: several may be one turn.
_ITEMS = "input"

_OF_ASSISTANTS = frozenset({Text, ToolUse, Thinking, RedactedThinking})

# Members with which a block is more than plain text, a call, or a result of text. The scan looks at the exempt ones
# itself. All reasoning is more.
_is_rare_text = unusual(Text)
_is_rare_call = unusual(ToolUse, "incomplete")
_is_rare_result = unusual(ToolResult, "content", "is_error")
_is_rare_thinking = unusual(Thinking, "issuer", "signature")
_is_rare_redacted = unusual(RedactedThinking, "issuer")


class ValidRun(Struct, frozen=True, kw_only=True):
    """A run of turns that need no repair besides the loss of blank texts, and that settle after everything before them.

    Attributes:
        start: the index of the first turn. The turn after the last is an assistant's that says something, whatever a
            repair changes in it, so nothing after it joins the run.
        opens: the history begins here, with a user turn; otherwise the first turn is an assistant's.
        turns: the number of turns.
        counted: for each assistant turn, and for the one after the last turn, its index from ``start``, and the number
            of assistant turns, of user turns besides results, and of calls that the machine would count before it.
        rows: the indexes, from ``start``, of turns that join the previous one: results in a message of their own, and
            items of Responses.
        ids: the ids of the calls, all answered.
        names: the names of the called tools.
        special: the indexes among ``messages`` of those that hold more than plain text, calls, and results of text, or
            the result of an error.
        thoughts: the indexes of those among them that are special only for reasoning.
        made: the calls came without ids, and each answer is followed by the results of its calls, in their order. None
            of ``ids`` is theirs: repair makes them.
        blanks: the indexes among ``messages`` of those with blank texts besides other content. Repair drops the texts.
        reasons: whether they hold thinking.
    """

    start: int
    opens: bool
    turns: int
    counted: list[tuple[int, int, int]]
    rows: list[int]
    ids: list[str]
    names: set[str]
    special: list[int]
    thoughts: list[int]
    blanks: list[int]
    reasons: bool
    made: bool = False

    @property
    def number(self) -> int:
        """The number of turns that repair would count."""
        return self.counted[-1][1]

    def messages(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Return the messages of these turns: one each, except for the turns that join the previous one."""
        if not self.rows:
            return turns
        behind = set(self.rows)
        starts = [at for at in range(self.turns) if at not in behind]
        return [_joined(turns[at:end]) for at, end in pairwise([*starts, self.turns])]

    def without(self, pairs: int) -> ValidRun:
        """Return the rest without the first pairs of an answer and a user turn, unless it opens the history."""
        if not pairs:
            return self
        behind, number, calls = self.counted[pairs]
        return structs.replace(
            self,
            start=self.start + behind,
            turns=self.turns - behind,
            counted=[(at - behind, later - number, more - calls) for at, later, more in self.counted[pairs:]],
            rows=[at - behind for at in self.rows if at >= behind],
            ids=self.ids[calls:],
            special=[at - 2 * pairs for at in self.special if at >= 2 * pairs],
            thoughts=[at - 2 * pairs for at in self.thoughts if at >= 2 * pairs],
            blanks=[at - 2 * pairs for at in self.blanks if at >= 2 * pairs],
        )

    def holds(self, policy: Policy, observed: Collection[str]) -> bool:
        """Return True if the machine would let these turns be: nothing stripped, no calls left out, blanks dropped.

        ``observed`` are the codes of the repairs that are not made.
        """
        return (
            not policy.strip_tools
            and policy.missing_result == "synthesise"
            and not (self.reasons and policy.reasoning == "strip")
            and not (self.blanks and "blank_dropped" in observed)
        )


def _joined(turns: Sequence[Turn]) -> Turn:
    """One turn of several."""
    if len(turns) == 1:
        return turns[0]
    blocks = tuple(block for turn in turns for block in turn.blocks)
    paths = tuple(path for turn in turns for path in turn.paths or ())
    named = next((turn.id for turn in reversed(turns) if turn.id), None)
    first = turns[0]
    return JoinedTurn(
        role=first.role, blocks=blocks, index=first.index, id=named, paths=paths, root=first.root, items=tuple(turns)
    )


class _CallsWithoutIds:
    """The names of calls that came without ids, by the ids that are made of them; results must be in their order.

    It has the methods of a dictionary that a scan uses, as the ids are not unique.
    """

    __slots__ = ("_named",)

    def __init__(self) -> None:
        self._named: list[tuple[str, str]] = []

    def __setitem__(self, call: str, name: str) -> None:
        self._named.append((call, name))

    def __len__(self) -> int:
        return len(self._named)

    def pop(self, call: str, default: None) -> str | None:
        return self._named.pop(0)[1] if self._named and self._named[0][0] == call else default

    def values(self) -> Iterable[str]:
        return [name for _, name in self._named]


_Calls: TypeAlias = dict[str, str] | _CallsWithoutIds


class _Scan:
    """The state of a scan for one run. No call may have an id that is ``known`` from an earlier turn.

    ``made``: whether the calls of the run came without ids; None before the first one.
    """

    __slots__ = ("_is_sound", "_known", "blanks", "ids", "made", "names", "reasons", "special", "thoughts")

    def __init__(self, known: set[str], is_sound: IsSound) -> None:
        self._known = known
        self._is_sound = is_sound
        self.ids: list[str] = []
        self.names: set[str] = set()
        self.special: list[int] = []
        self.thoughts: list[int] = []
        self.blanks: list[int] = []
        self.reasons = False
        self.made: bool | None = None

    def calls(self, turn: Turn, at: int) -> _Calls | None:
        """The names of a valid assistant turn's calls, by id; None if it is not one. ``at`` is its place."""
        if turn.role != "assistant" or turn.incomplete:
            return None
        if turn.ids_made and not _has_made_ids(turn):
            return None
        return self._calls(turn.blocks, at, made=turn.ids_made, special=turn.own is not UNSET)

    def calls_of_items(self, items: Sequence[Turn], at: int) -> _Calls | None:
        """The same of an assistant's items of Responses, which are one turn."""
        if any(item.ids_made or item.incomplete for item in items):
            return None
        if len(items) == 1:
            return self.calls(items[0], at)
        for before, item in pairwise(items):
            # A message after a message begins another turn.
            if type(before.blocks[-1]) is type(item.blocks[0]) is Text:
                return None
            # An item may be the one before it once more.
            if item.id is not None and item.id == before.id:
                return None
        blocks = [block for item in items for block in item.blocks]
        calls = self._calls(blocks, at, made=False, special=any(item.own is not UNSET for item in items))
        # Whether a blank text stays depends on its item.
        return None if self.blanks[-1:] == [at] else calls

    def _calls(self, blocks: Iterable[Block], at: int, *, made: bool, special: bool) -> _Calls | None:
        """The names of calls in the blocks of a valid assistant turn, by id; ``special`` if its members make it so."""
        calls: _Calls = _CallsWithoutIds() if made else {}
        known = self._known
        says, blank, thinks = False, False, False
        block: Any  # looked at by its class, for speed
        for block in blocks:
            kind = type(block)
            if kind is Text:
                rare = _is_rare_text(block)
                if not block.text or block.text.isspace():
                    if rare:
                        return None
                    blank = True
                    continue
                # Text after a call must be moved.
                if calls:
                    return None
                says = True
            elif kind is ToolUse:
                call, name, data = block.id, block.name, bytes(block.input)
                if (call in known and not made) or not name or name.isspace() or data[:1] != b"{" or block.incomplete:
                    return None
                # Most ids are identifiers (toolu_01A, call_7), which is cheaper to check than the pattern.
                is_identifier = call.isascii() and call.isidentifier() and len(call) <= LONGEST_ID
                if not (is_identifier or made or is_legal(call)):
                    return None
                if not (len(data) <= _SHORT and data.isascii()) and not self._is_sound(block):
                    return None
                known.add(call)
                calls[call] = name
                rare = _is_rare_call(block)
            elif kind is Thinking or kind is RedactedThinking:
                thinks = True
                rare = _is_rare_thinking(block) if kind is Thinking else _is_rare_redacted(block)
            else:
                return None
            if rare:
                if not self._is_sound(block):
                    return None
                special = True
        if not (says or calls):
            return None
        if calls and self.made is not made:
            # Ids of one kind in a run: those that repair makes depend on each id before them.
            if self.made is not None:
                return None
            self.made = made
        if thinks:
            self.reasons = True
            if not special:
                self.thoughts.append(at)
        if special or thinks:
            self.special.append(at)
        if blank:
            self.blanks.append(at)
        return calls

    def user_says(self, turn: Turn, calls: _Calls, at: int) -> bool | None:
        """Return True if a valid user turn says something besides its results.

        None if it is not such a turn, or begins with other than real results for some of ``calls``, which are used up.
        """
        if turn.role != "user" or not turn.blocks or turn.synthetic:
            return None
        if turn.ids_made and type(calls) is dict:
            return None
        special, said, blank = False, False, False
        block: Any  # looked at by its class, for speed
        for block in turn.blocks:
            kind = type(block)
            if kind is ToolResult:
                content, name = block.content, calls.pop(block.tool_use_id, None)
                if name is None or said:
                    return None
                rare = _is_rare_result(block)
                special = special or block.is_error
                if type(content) is list:
                    if not content or not all(map(_is_fit, content)):
                        return None
                    rare = rare or not all(map(_is_plain, content))
                elif type(content) is not str:
                    return None
                if len(content) <= LONGEST_PLACEHOLDER and is_placeholder(block, name, block.tool_use_id):
                    return None
            elif _is_fit(block):
                said = True
                rare = not _is_plain(block)
            elif len(turn.blocks) > 1 and _is_plain_blank(block):
                blank = True
                continue
            else:
                return None
            if rare:
                if not self._is_sound(block):
                    return None
                special = True
        if blank and all(map(_is_plain_blank, turn.blocks)):
            return None
        if special or turn.own is not UNSET:
            self.special.append(at)
        if blank:
            self.blanks.append(at)
        return said

    def answers(
        self, turns: Sequence[Turn], at: int, calls: _Calls, place: int, *, said: bool | None
    ) -> tuple[bool | None, int]:
        """Return the result of `user_says` for the message that begins at an index, and the index after it.

        Each of several results may be a turn of its own. None if not all of ``calls`` are answered. ``said`` is the
        result for the first turn.
        """
        if turns[at].root == _ITEMS:
            return self._item_answers(turns, at, calls, place, said=said)
        while said is False and calls and type(calls) is dict and _are_rows(turns, at):
            at += 1
            said = self.user_says(turns[at], calls, place)
        return None if calls else said, at + 1

    def _item_answers(
        self, turns: Sequence[Turn], at: int, calls: _Calls, place: int, *, said: bool | None
    ) -> tuple[bool | None, int]:
        """Return the same for items of Responses: after results in items, a message of the user's joins them."""
        start = at
        while said is False and at + 1 < len(turns) and _is_result_item(turns[at]):
            item = turns[at + 1]
            if item.role != "user" or item.root != _ITEMS:
                break
            at += 1
            said = self.user_says(item, calls, place)
        # Whether a blank text stays depends on its item.
        is_blank = at > start and self.blanks[-1:] == [place]
        return None if calls or is_blank else said, at + 1


def _has_made_ids(turn: Turn) -> bool:
    """Return True if all calls of a turn came without ids."""
    return all(block.id == made_id(block.name) for block in turn.blocks if type(block) is ToolUse)


def _is_result_item(turn: Turn) -> bool:
    """Return True if a turn is a result that is an item by itself."""
    return len(turn.blocks) == 1 and turn.paths is not None and turn.paths[0].count(".") == 1


def _are_rows(turns: Sequence[Turn], at: int) -> bool:
    return at + 1 < len(turns) and _is_row(turns[at]) and _is_row(turns[at + 1])


def _is_row(turn: Turn) -> bool:
    """Return True if a turn is one result that is a message of its own without other members."""
    if turn.paths is None or len(turn.blocks) != 1 or turn.own is not UNSET:
        return False
    return type(turn.blocks[0]) is ToolResult and is_whole(turn.paths[0])


def _is_plain(block: Block) -> bool:
    """Return True if a block is a text without other members."""
    return type(block) is Text and not _is_rare_text(block)


def _is_plain_blank(block: Block) -> bool:
    """Return True if a block is a blank text without other members."""
    return type(block) is Text and (not block.text or block.text.isspace()) and not _is_rare_text(block)


def _is_fit(block: Block) -> bool:
    """Return True if a user's block, in a result or not, is a text, an image or a document that stays as it is."""
    if type(block) is Text:
        # Only the model refuses.
        return bool(block.text) and not block.text.isspace() and not block.refusal
    return isinstance(block, (Image, Document)) and with_plain_data(block.source) is None


def _says_something(items: Sequence[Turn]) -> bool:
    """Return True if an assistant's turn keeps a text, and gives no block to the user, whatever is repaired in it.

    ``items`` are the turn, or the items of Responses that are one.
    """
    for item in items:
        if item.role != "assistant" or item.ids_made or item.incomplete:
            return False
    blocks = [block for item in items for block in item.blocks]
    if not all(type(block) in _OF_ASSISTANTS for block in blocks):
        return False
    return any(type(block) is Text and block.text and not block.text.isspace() for block in blocks)


def _items_from(turns: Sequence[Turn], at: int) -> int:
    """Return the index after the items of Responses from an index on that are one turn of the assistant's."""
    while at < len(turns) and turns[at].role == "assistant" and turns[at].root == _ITEMS and turns[at].blocks:
        at += 1
    return at


def find_valid_runs(turns: Sequence[Turn], is_sound: IsSound = lambda _: True) -> list[ValidRun]:
    """Return the valid runs of a history, in whole pairs of an answer and a user turn.

    ``is_sound`` checks the free-form JSON in a block, where no reader has checked it yet. It is not called for calls
    with little plain input, nor for blocks without free-form JSON.
    """
    found: list[ValidRun] = []
    known: set[str] = set()
    at = next((at for at, turn in enumerate(turns) if turn.role != "system"), len(turns))
    opens = True
    while at < len(turns):
        valid_run, at = _run_from(turns, at, _Scan(known, is_sound), opens=opens)
        if valid_run is not None:
            found.append(valid_run)
        opens = False
        while at < len(turns) and turns[at].role != "assistant":
            at += 1
    return found


def turns_with_media(turns: Sequence[Turn], valid_runs: Iterable[ValidRun]) -> list[Turn]:
    """Return the turns that hold images or documents. Plain turns of valid runs are not looked at again."""
    rest: list[Turn] = []
    at = 0
    for valid_run in valid_runs:
        end = valid_run.start + valid_run.turns
        rest += turns[at : valid_run.start]
        if valid_run.rows:
            rest += turns[valid_run.start : end]
        else:
            rest += [turns[valid_run.start + place] for place in valid_run.special]
        at = end
    return list(filter(has_media, [*rest, *turns[at:]]))


def _run_from(turns: Sequence[Turn], start: int, scan: _Scan, *, opens: bool) -> tuple[ValidRun | None, int]:
    """Return the run that begins at an index, or None, and the index after the scanned turns.

    ``opens`` says that it begins the history, and so with a user turn.
    """
    at, number, place = start, 0, 0
    if opens:
        if scan.user_says(turns[start], {}, 0) is None:
            return None, start + 1
        at, number, place = start + 1, 1, 1
    counted: list[tuple[int, int, int]] = []
    rows: list[int] = []
    while at < len(turns):
        last = at + 1
        if turns[at].root == _ITEMS:
            last = max(last, _items_from(turns, at))
            calls = scan.calls_of_items(turns[at:last], place)
        else:
            calls = scan.calls(turns[at], place)
        if calls is None and not _says_something(turns[at:last]):
            break
        counted.append((at - start, number, len(scan.ids)))
        if calls is None:
            break
        if calls:
            if type(calls) is dict:
                scan.ids += calls
            scan.names.update(calls.values())
        said = scan.user_says(turns[last], calls, place + 1) if last < len(turns) else None
        behind = last + 1
        if said is not None and (calls or turns[last].root == _ITEMS):
            said, behind = scan.answers(turns, last, calls, place + 1, said=said)
        if said is None:
            break
        if last - at > 1 or behind - last > 1:
            rows += range(at + 1 - start, last - start)
            rows += range(last + 1 - start, behind - start)
        number += 2 if said else 1
        at, place = behind, place + 2
    # The last answer is the machine's, whatever follows it.
    if len(counted) < (1 if opens else 2):
        return None, at + 1
    count, _, called = counted[-1]
    rows = [row for row in rows if row < count]
    messages = count - len(rows)
    valid_run = ValidRun(
        start=start,
        opens=opens,
        turns=count,
        counted=counted,
        rows=rows,
        ids=scan.ids[:called],
        names=scan.names,
        special=[place for place in scan.special if place < messages],
        thoughts=[place for place in scan.thoughts if place < messages],
        blanks=[place for place in scan.blanks if place < messages],
        reasons=scan.reasons,
        made=bool(scan.made),
    )
    return valid_run, at + 1
