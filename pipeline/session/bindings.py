"""What a model has been sent and has answered, where its reasoning is bound to all that came before it.

Of each such target the session keeps the messages of its last request, as digests of those that no settled chunk has.
A later request whose messages differ voids all reasoning from the first difference on: it was issued after something
that has changed. Void reasoning is never sent again. What is not known to have been sent voids nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.model import RedactedThinking, Thinking, Turn, messages_in
from reknit.pipeline.session.prefix import PrefixChange
from reknit.pipeline.session.request import Account
from reknit.pipeline.session.settled import SettledPart
from reknit.pipeline.targets.bound import NOT_VOID, Void, has_reasoning, is_answer, is_void
from reknit.pipeline.targets.valid_run import Origins, expanded

CHANGED: Final = "changed"
"""The prefix reset of a request whose earlier messages differ for no other reason."""

_DIGEST: Final = 16
_REASONING: Final = (Thinking, RedactedThinking)
_Parts: TypeAlias = Mapping[str, SettledPart]
_Rows: TypeAlias = Sequence[Origins]
End: TypeAlias = Literal["", "open", "continued"]
"""The end of a request: a later turn may change it (``open``), or ``CONTINUE`` is there, or neither."""


class SentMessage(Struct, frozen=True, array_like=True):
    """A message that was sent: its digest, and the index of the input message that it begins with, -1 if unknown."""

    digest: bytes
    index: int


class Sent(Struct, frozen=True, array_like=True):
    """The last request of a target.

    Attributes:
        variant: the variant whose settled part it began with.
        head: the digest of its system prompt and tools.
        chunks: how many of the settled part's chunks it began with.
        messages: how many messages these are.
        rest: the messages after them.
        end: whether the next turn would change its end: ``""``, ``open``, or ``continued`` where ``CONTINUE`` ends it.
    """

    variant: str
    head: bytes
    chunks: int
    messages: int
    rest: list[SentMessage]
    end: str = ""


class SavedBindings(Struct, array_like=True):
    """The bindings as state: what was sent and what is void by target, and the answers (``History.answered``).

    ``reasoned`` is the index of the last message with reasoning, or a later one.
    """

    sent: dict[str, Sent] = {}
    void: dict[str, list[tuple[int, int]]] = {}
    answered: dict[int, bool] = {}
    reasoned: int = -1


class Change(Struct, frozen=True):
    """What a change voids: reasoning of the input from an index on; ``message`` is the first of the body that has some.

    None of the body may have any, where a repair leaves it out of this request alone.
    """

    start: int
    message: int | None


class PrefixBindings:
    """Requests and answers of one session, and its void reasoning; of prefix-bound targets only.

    With ``keeps_answered``, what was answered settles for other targets too. Another program sends the requests then,
    and says which ones were answered.
    """

    def __init__(self, saved: SavedBindings | None = None, *, keeps_answered: bool = False) -> None:
        saved = saved or SavedBindings()
        self.sent = dict(saved.sent)
        self.void = dict(saved.void)
        self.answered = dict(saved.answered)
        self.reasoned = saved.reasoned
        self.keeps_answered = keeps_answered
        self._last_head: tuple[bytes | None, bytes] = None, b""

    def saved(self) -> SavedBindings | UnsetType:
        if not (self.sent or self.void or self.answered):
            return UNSET  # no request has been sent to such a model
        return SavedBindings(self.sent, self.void, self.answered, self.reasoned)

    # Requests of another program.

    def take_answered(self, answered: Mapping[int, bool], count: int) -> bool:
        """Replace what was answered, and forget requests of the session's own: another program sends them.

        That program compares no request with the one before, so no reasoning becomes void by that.

        Args:
            answered: as of ``History.answered``.
            count: the number of messages that were received.

        Returns:
            True if the history must be repaired again.
        """
        is_void = bool(self.sent and self.void)
        changed = {index for index, _ in self.answered.items() ^ answered.items() if index < count}
        # In place: machines and writers read them.
        if self.sent:
            self.sent = {}
            self.void.clear()
        self.answered.clear()
        self.answered.update(answered)
        self.keeps_answered = True
        return is_void or bool(changed)

    def note_end(self, count: int, end: End) -> None:
        """Note the end of a request that another program has sent, and that has all messages so far."""
        if end:
            self.answered[count] = end == "continued"
            self.keeps_answered = True

    # Requests and answers.

    def note_request(self, target: str, variant: str, account: Account) -> None:
        """Take a request as sent."""
        settled = account.settled
        rest = _sent_messages(_open(account), [part.rows for part in account.ending.parts if part.data])
        end = "continued" if _is_continued(account) else "open" if account.end_may_change else ""
        if account.rendered.final and rest:
            # The model goes on with this message, so it has no end yet.
            rest.pop()
        self.sent[target] = Sent(variant, self._head(account), len(settled.chunks), len(settled.rows), rest, end)

    def note_turns(self, turns: Sequence[Turn], tracked: Collection[str]) -> None:
        """Note whether the next turns answer a request to one of the targets, before they are taken."""
        if not turns or not any(sent.end for sent in self.sent.values()):
            return
        ends = {self.sent[target].end for target in tracked if target in self.sent} - {""}
        if ends and turns[0].role == "assistant":
            self.answered[turns[0].index] = "continued" in ends
        self.sent = {target: structs.replace(sent, end="") for target, sent in self.sent.items()}

    def note_reasoning(self, turns: Iterable[Turn]) -> None:
        """Note where the last reasoning is."""
        for turn in turns:
            if turn.role == "assistant" and any(isinstance(block, _REASONING) for block in turn.blocks):
                self.reasoned = turn.index

    def change(self, target: str, account: Account) -> Change | None:
        """Return what a request voids, because it differs from the last one; None if nothing that is not void yet.

        Both begin with the chunks of the same settled part (see ``loosened``).
        """
        sent = self.sent.get(target)
        if sent is None:
            return None
        same, first = None, 0
        if sent.head == self._head(account):
            now = _messages([*account.settled.chunks[sent.chunks :], *_open(account)])
            equal = _equal(sent, now)
            first = sent.messages + equal
            if equal < len(sent.rest):
                same = sent.rest[equal].index
            elif equal == len(now) or is_answer(now[equal]):
                return None
        start = _start(account, first, same)
        if self._is_void_from(target, start):
            return None
        return Change(start, _visible(account, first, start, self.void.get(target, NOT_VOID)))

    def _head(self, account: Account) -> bytes:
        """The digest of a request's system prompt and tools; the same for most requests of a session."""
        head = account.settled.dialect.head if account.ending.head is None else account.ending.head
        if self._last_head[0] is not head:
            self._last_head = head, _head_digest(head)
        return self._last_head[1]

    def _is_void_from(self, target: str, start: int) -> bool:
        """Return True if no reasoning from an index on is valid."""
        if self.reasoned < start:
            return True
        return any(first <= start and self.reasoned < end for first, end in self.void.get(target, NOT_VOID))

    def add_void(self, target: str, start: int, count: int) -> None:
        """Void the reasoning of all messages of the input from one on; there are ``count``."""
        earlier = [(first, min(end, start)) for first, end in self.void.get(target, NOT_VOID) if first < start]
        if earlier and earlier[-1][1] == start:
            start = earlier.pop()[0]
        self.void[target] = [*earlier, (start, count)]

    def note_change(self, change: PrefixChange, tracked: Collection[str]) -> None:
        """Void what a change of the prefix makes void that the history itself proves.

        Where it is known what was sent, the next request is compared with that.
        """
        for target in sorted(tracked):
            if change.target in {"", target} and target not in self.sent:
                self.add_void(target, change.first, change.at)

    # Changes of the history.

    def loosened(self, parts: _Parts) -> PrefixBindings:
        """Return the same without reference to chunks, for settled parts that are written again."""
        saved = SavedBindings(self.sent, self.void, self.answered, self.reasoned)
        found = PrefixBindings(saved, keeps_answered=self.keeps_answered)
        for target, sent in self.sent.items():
            if sent.chunks:
                part = parts[sent.variant]  # every variant that was sent has its part until its chunks are loosened
                rest = [*_sent_messages(part.chunks[: sent.chunks], part.rows), *sent.rest]
                found.sent[target] = structs.replace(sent, chunks=0, messages=0, rest=rest)
        return found

    def cut(self, count: int) -> None:
        """Forget what concerns messages after the first ``count`` of the input; what was sent stays known."""
        # In place: machines and writers read them.
        for index in [index for index in self.answered if index >= count]:
            del self.answered[index]
        for target, void in list(self.void.items()):
            self.void[target] = [(first, min(end, count)) for first, end in void if first < count]
            if not self.void[target]:
                del self.void[target]
        self.reasoned = min(self.reasoned, count - 1)
        for target, sent in self.sent.items():
            rest = [each if each.index < count else structs.replace(each, index=-1) for each in sent.rest]
            self.sent[target] = structs.replace(sent, rest=rest, end="")

    def cut_parts(self, before: Mapping[str, tuple[Sequence[bytes], _Rows]], parts: _Parts) -> None:
        """Refer to the chunks that settled parts still have; they had those of ``before``, by variant."""
        for target, sent in self.sent.items():
            part = parts.get(sent.variant)
            if part is not None and sent.chunks > len(part.chunks):
                left, messages = len(part.chunks), len(part.rows)
                chunks, rows = before[sent.variant]
                rest = [*_sent_messages(chunks[left : sent.chunks], rows[messages:]), *sent.rest]
                self.sent[target] = structs.replace(sent, chunks=left, messages=messages, rest=rest)


def end_of(account: Account) -> End:
    """Return whether a later turn may change the end of a request, for a model of any kind."""
    return "continued" if _is_continued(account) else "open" if account.is_open else ""


def _is_continued(account: Account) -> bool:
    messages = account.rendered.messages
    return bool(messages) and messages[-1].pieces[0].code == "tail_continued"


def _open(account: Account) -> list[bytes]:
    """The open messages of a request, without breakpoints: these are no part of what reasoning is bound to."""
    return [part.data for part in account.ending.parts if part.data]


def _messages(parts: Iterable[bytes]) -> list[Raw]:
    """The messages of chunks; a chunk may hold several."""
    return msgspec.json.decode(b"[%b]" % b",".join(parts), type=list[Raw])


class _Message(Struct, frozen=True):
    role: str
    content: list[Raw]


_POINT: Final = b'{"cachePoint"'
_message: Final = msgspec.json.Decoder(_Message)


def _message_digest(message: Raw) -> bytes:
    """The digest of a message; Converse's breakpoints are blocks, which only the newest messages have."""
    data = bytes(message)
    if _POINT in data:
        found = _message.decode(data)
        content = [block for block in found.content if not bytes(block).startswith(_POINT)]
        data = msgspec.json.encode(_Message(found.role, content))
    return _digest(data)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


class _ToolConfig(Struct, frozen=True):
    tools: list[Any] = []


class _Head(Struct, frozen=True, rename={"tool_config": "toolConfig"}):
    """The members of a request's head that reasoning is bound to, in Anthropic's shape and in Converse's."""

    system: Any = None
    tools: list[Any] = []
    tool_config: _ToolConfig = _ToolConfig()


_decode_head = msgspec.json.Decoder(_Head).decode


def _head_digest(head: bytes) -> bytes:
    """The digest of the system prompt and the tools of a request's head."""
    found = _decode_head(head)
    bound = [found.system, found.tools, found.tool_config.tools]
    return _digest(msgspec.json.encode(_unmarked(bound)))


def _unmarked(value: Any) -> Any:  # noqa: ANN401  any JSON
    """The value without cache breakpoints."""
    if isinstance(value, list):
        return [_unmarked(each) for each in value if not (isinstance(each, dict) and each.keys() == {"cachePoint"})]
    if isinstance(value, dict):
        return {key: _unmarked(each) for key, each in value.items() if key != "cache_control"}
    return value


def _sent_messages(parts: Iterable[bytes], rows: _Rows) -> list[SentMessage]:
    pairs = zip(_messages(parts), rows, strict=False)
    return [SentMessage(_message_digest(message), min(_indices(row), default=-1)) for message, row in pairs]


def _indices(rows: Origins) -> list[int]:
    """The indexes of the input messages that a message of the body has something of."""
    if isinstance(rows, Turn):
        return [item.index for item in messages_in(rows)]
    places = (path.split(".", 2) for path, *_ in expanded(rows))
    return [int(place[1]) for place in places if len(place) > 1 and place[1].isdecimal()]


def _whole(account: Account) -> tuple[list[Raw], _Rows]:
    """The messages of a body, and their rows."""
    rows = [*account.settled.rows, *(part.rows for part in account.ending.parts if part.data)]
    return _messages([*account.settled.chunks, *_open(account)]), rows


def _equal(sent: Sent, now: Sequence[Raw]) -> int:
    """Return how many messages after the common chunks are those that were sent."""
    pairs = zip(sent.rest, now, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].digest == _message_digest(pair[1]), pairs))


def _start(account: Account, first: int, same: int | None) -> int:
    """Return the index from which on reasoning came after a change; ``first`` is the changed message of the body.

    ``same`` is the index of the message that was sent in its place. The reasoning of that one came before the change.
    """
    messages, rows = _whole(account)
    if first < len(messages) and same is not None and same >= 0 and same == min(_indices(rows[first]), default=-1):
        return same + 1
    for at in range(first - 1, -1, -1):
        if is_answer(messages[at]):
            return max(_indices(rows[at]), default=-1) + 1
    return 0


def _visible(account: Account, first: int, start: int, void: Void) -> int | None:
    """Return the first message of a body from one on with reasoning that was valid and is not any more."""
    messages, rows = _whole(account)
    for at in range(first, len(messages)):
        indices = _indices(rows[at])
        if has_reasoning(messages[at]) and any(index >= start and not is_void(void, index) for index in indices):
            return at
    return None


def common_messages(entries: Iterable[object], others: Iterable[object]) -> int:
    """Return how many messages two logs begin with alike."""
    found = 0
    turns = ((entry for entry in log if isinstance(entry, Turn)) for log in (entries, others))
    for one, other in zip(*turns, strict=False):
        if one != other:
            break
        found = one.index + 1
    return found
