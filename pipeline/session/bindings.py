"""What a model has been sent and has answered, where its reasoning is bound to all that came before it.

Of each such target the session keeps the messages of its last request, as digests of those that no settled chunk has.
A later request whose messages differ voids all reasoning from the first difference on: it was issued after something
that has changed. Void reasoning is never sent again. What is not known to have been sent voids nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.model import Turn
from reknit.pipeline.session.media import index_of
from reknit.pipeline.session.request import Account
from reknit.pipeline.session.settled import SettledPart
from reknit.pipeline.targets import Row
from reknit.pipeline.targets.bound import has_reasoning, is_void

CHANGED: Final = "changed"
"""The prefix reset of a request whose earlier messages differ for no other reason."""

_DIGEST: Final = 16
_Parts: TypeAlias = Mapping[str, SettledPart]


class Sent(Struct, frozen=True, array_like=True):
    """The last request of a target.

    Attributes:
        variant: the variant whose settled part it began with.
        head: the digest of its system prompt and tools.
        chunks: how many of the settled part's chunks it began with.
        messages: how many messages these are.
        rest: the digests of the messages after them.
        end: whether the next turn would change its end: ``""``, ``open``, or ``continued`` where ``CONTINUE`` ends it.
    """

    variant: str
    head: bytes
    chunks: int
    messages: int
    rest: list[bytes]
    end: str = ""


class SavedBindings(Struct, array_like=True):
    """The bindings as state: what was sent and what is void by target, and the answers (``History.answered``)."""

    sent: dict[str, Sent] = {}
    void: dict[str, list[tuple[int, int]]] = {}
    answered: dict[int, bool] = {}


class Change(Struct, frozen=True):
    """The reasoning that a change voids: the number of its first message in the body, and of that one in the input."""

    message: int
    index: int


class PrefixBindings:
    """What was sent and answered in one session, and what reasoning is void; of prefix-bound targets only."""

    def __init__(self, saved: SavedBindings | None = None) -> None:
        saved = saved or SavedBindings()
        self.sent = dict(saved.sent)
        self.void = dict(saved.void)
        self.answered = dict(saved.answered)

    def saved(self) -> SavedBindings | UnsetType:
        if not (self.sent or self.void or self.answered):
            return UNSET
        return SavedBindings(self.sent, self.void, self.answered)

    # Requests and answers.

    def note_request(self, target: str, variant: str, account: Account) -> None:
        """Take a request as sent."""
        settled = account.settled
        digests = _digests(_open(account))
        end = "continued" if _is_continued(account) else "open" if account.end_may_change else ""
        if account.rendered.final and digests:
            # The model goes on with this message, so it has no end yet.
            digests.pop()
        self.sent[target] = Sent(
            variant, _head(account), len(settled.chunks), len(settled.rows), digests, end
        )

    def note_turns(self, turns: Sequence[Turn], tracked: Collection[str]) -> None:
        """Note whether the next turns answer a request to one of the targets, before they are taken."""
        if not turns or not any(sent.end for sent in self.sent.values()):
            return
        ends = {self.sent[target].end for target in tracked if target in self.sent} - {""}
        if ends and turns[0].role == "assistant":
            self.answered[turns[0].index] = "continued" in ends
        self.sent = {target: structs.replace(sent, end="") for target, sent in self.sent.items()}

    def change(self, target: str, account: Account) -> Change | None:
        """Return what a request voids, because it differs from the last one before its reasoning; None if nothing.

        Both begin with the chunks of the same settled part (see ``loosened``).
        """
        sent = self.sent.get(target)
        if sent is None:
            return None
        first = 0
        if sent.head == _head(account):
            first = sent.messages + self._equal(sent, account)
            if first == sent.messages + len(sent.rest):
                return None
        return self._first_reasoning(target, first, account)

    @staticmethod
    def _equal(sent: Sent, account: Account) -> int:
        """Return how many messages after the common chunks are those that were sent."""
        now = _digests([*account.settled.chunks[sent.chunks :], *_open(account)])
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(sent.rest, now, strict=False)))

    def _first_reasoning(self, target: str, first: int, account: Account) -> Change | None:
        """Return the first message from one on with reasoning that is not void yet."""
        void = self.void.get(target, ())
        messages = _messages([*account.settled.chunks, *_open(account)])
        rows = [*account.settled.rows, *(part.rows for part in account.ending.parts if part.data)]
        for at in range(first, len(messages)):
            if not has_reasoning(messages[at]):
                continue
            index = _index(rows[at])
            if index is not None and not is_void(void, index):
                return Change(at, index)
        return None

    def add_void(self, target: str, index: int, count: int) -> None:
        """Void the reasoning of all messages of the input from one on; there are ``count``."""
        earlier = [(first, min(end, index)) for first, end in self.void.get(target, ()) if first < index]
        if earlier and earlier[-1][1] == index:
            index = earlier.pop()[0]
        self.void[target] = [*earlier, (index, count)]

    # Changes of the history.

    def loosened(self, parts: _Parts) -> PrefixBindings:
        """Return the same without reference to chunks, for settled parts that are written again."""
        found = PrefixBindings(SavedBindings(self.sent, self.void, self.answered))
        for target, sent in self.sent.items():
            if sent.chunks:
                rest = [*_digests(parts[sent.variant].chunks[: sent.chunks]), *sent.rest]
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
        self.sent = {target: structs.replace(sent, end="") for target, sent in self.sent.items()}

    def cut_parts(self, before: Mapping[str, Sequence[bytes]], parts: _Parts) -> None:
        """Refer to the chunks that settled parts still have; they had those of ``before``, by variant."""
        for target, sent in self.sent.items():
            part = parts.get(sent.variant)
            if part is not None and sent.chunks > len(part.chunks):
                left = len(part.chunks)
                rest = [*_digests(before[sent.variant][left : sent.chunks]), *sent.rest]
                self.sent[target] = structs.replace(sent, chunks=left, messages=len(part.rows), rest=rest)


def _is_continued(account: Account) -> bool:
    messages = account.rendered.messages
    return bool(messages) and messages[-1].pieces[0].code == "tail_continued"


def _open(account: Account) -> list[bytes]:
    """The open messages of a request, without breakpoints: these are no part of what reasoning is bound to."""
    return [part.data for part in account.ending.parts if part.data]


def _messages(parts: Iterable[bytes]) -> list[Raw]:
    """The messages of chunks; a chunk may hold several."""
    return msgspec.json.decode(b"[%b]" % b",".join(parts), type=list[Raw])


def _digests(parts: Iterable[bytes]) -> list[bytes]:
    return [_digest(message) for message in _messages(parts)]


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


def _head(account: Account) -> bytes:
    """The digest of the system prompt and the tools."""
    head = account.settled.dialect.head if account.ending.head is None else account.ending.head
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


def _index(rows: Sequence[Row] | Turn) -> int | None:
    """The index of the input message that a message of the body begins with."""
    if isinstance(rows, Turn):
        return rows.index
    return min((index_of(path) for path, *_ in rows if path), default=None)


def common_messages(entries: Iterable[object], others: Iterable[object]) -> int:
    """Return how many messages two logs begin with alike."""
    found = 0
    turns = ((entry for entry in log if isinstance(entry, Turn)) for log in (entries, others))
    for one, other in zip(*turns, strict=False):
        if one != other:
            break
        found = one.index + 1
    return found
