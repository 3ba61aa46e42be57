"""Turns of sessions from the request bodies of a platform, as a log or a gateway has them.

A body repeats its conversation from the start. One that continues the last body of a session appends only the new
messages; any other restores the session's history. If a session has no name, the body belongs to the session that it
continues, or else begins one that is named after its content. The same bodies give the same records with the same ids.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read, read_message, read_setting
from reknit.pipeline.model import ToolResult, ToolUse
from reknit.pipeline.stages.content import ROOTS, ComparedValues, may_have_marks, unmarked
from reknit.pipeline.stages.defaults import chains_in
from reknit.pipeline.validation import validate
from reknit.topics.headers import Headers
from reknit.topics.records import HistoryRestored, RequestWanted, SessionOpened, TurnAppended, TurnRecord

# Most sessions in memory; an older one is restored as a whole.
_MOST_SESSIONS: Final = 100_000
# Memory for the JSON of compared messages.
_MOST_COMPARED: Final = 32 * 2**20


class Logged(Struct, frozen=True):
    """One request of the log. ``session`` is "" if the log names none, ``model`` if the URL names none.

    ``trace`` are the trace headers that the client sent.
    """

    target: str
    body: dict[str, Raw]
    session: str = ""
    producer: str = ""
    model: str = ""
    trace: Headers = ()

    @property
    def judged(self) -> bytes:
        """Return the value of the header `judged`: the target, and the rules that the request broke, unrepaired."""
        body = self.body if not self.model else {**self.body, "model": self.model}
        found = validate(msgspec.json.encode(body), self.target, self.model or None)
        broken = dict.fromkeys(each.rule for each in found if each.severity == "hard")
        return " ".join((self.target, *broken)).encode()


class _Seen(Struct):
    """The last body of a session: digests of its messages, of its other members, and of all messages before it."""

    session: str
    said: bytes
    count: int
    setting: bytes
    chain: bytes = b""


class Conversations(Struct):
    """Turns bodies into records, and remembers the last body of each session.

    Attributes:
        salt: makes the ids of records differ from those of another process, and of a session that was forgotten.
        begun: the number of sessions that have begun.
        strips_marks: histories that replace another one have no cache breakpoints either.
        compared: the values that were compared last.
    """

    sessions: OrderedDict[str, _Seen] = field(default_factory=OrderedDict)
    # Sessions that no log names, by the digest of their last body.
    ends: dict[bytes, str] = field(default_factory=dict)
    salt: bytes = b""
    begun: int = 0
    strips_marks: bool = False
    compared: ComparedValues = field(default_factory=partial(ComparedValues, _MOST_COMPARED))

    def records_of(self, logged: Logged) -> tuple[str, list[TurnRecord]]:
        """Return the session of a request and its new records; no records if the body repeats the previous one.

        Raises:
            InputError: its messages are no list, or its other members cannot be read.
        """
        body = dict(logged.body)
        root = next(name for name in ROOTS if name in body)
        messages = _listed(body.pop(root), root)
        if logged.model:
            body.setdefault("model", Raw(msgspec.json.encode(logged.model)))
        opened = _opening(logged.target, body)
        if chains_in(opened.params or {}):
            # Only the provider knows the earlier messages: the worker's dead letter reports that it was not judged.
            return logged.session or "log-chained", [opened]
        setting = _digest(msgspec.json.encode(opened))
        prefixes = self._prefixes(_digest(logged.target.encode()), messages)
        seen = self._find(logged.session, prefixes)
        goes_on = seen is not None and seen.count <= len(messages) and seen.said == prefixes[seen.count]
        if seen is None:
            name = logged.session or self._new_name(prefixes[-1])
            seen = _Seen(session=name, said=b"", count=0, setting=b"", chain=self._first_chain())
        elif goes_on and seen.count == len(messages) and seen.setting == setting:
            return seen.session, []
        chain = _digest(seen.session.encode(), seen.chain, prefixes[-1], setting)
        records: list[TurnRecord] = []
        if seen.setting != setting:
            records.append(structs.replace(opened, id=_id(chain, 0)))
        new = messages[seen.count :] if goes_on else []
        if not _readable(new or messages):
            # The worker's dead letter reports why it was not judged.
            return seen.session, [*records, HistoryRestored(messages=self._whole(messages))]
        if new:
            records += [TurnAppended(message=_without_marks(each), id=_id(chain, at)) for at, each in enumerate(new, 1)]
        elif not goes_on:
            records.append(HistoryRestored(messages=self._whole(messages), id=_id(chain, 1)))
        if not (new and _waits(new)):
            records.append(RequestWanted(id=_id(chain, len(messages) + 1)))
        self._note(_Seen(seen.session, prefixes[-1], len(messages), setting, chain), seen, named=bool(logged.session))
        return seen.session, records

    def _first_chain(self) -> bytes:
        """Return what the ids of a session's records begin with.

        With ``salt`` it is never the same: a session that was forgotten begins again, and a worker ignores an id that
        it has seen.
        """
        self.begun += 1
        return _digest(self.salt, self.begun.to_bytes(8, "big")) if self.salt else b""

    def forget(self, session: str) -> None:
        """Forget the last body of a session; its next one restores the history."""
        seen = self.sessions.pop(session, None)
        if seen is not None:
            self.ends.pop(seen.said, None)

    def forget_all(self) -> None:
        """Forget the last bodies of all sessions."""
        self.sessions.clear()
        self.ends.clear()

    def _prefixes(self, first: bytes, messages: Sequence[Raw]) -> list[bytes]:
        """Return the digests of the first 0, 1, 2 … messages without their cache breakpoints."""
        found = [first]
        try:
            for message in messages:
                found.append(_digest_of(found[-1], self.compared.message(message).sha256))
        except RecursionError as error:
            raise InputError("too_deep", "a message is nested too deeply", path=f"messages.{len(found) - 1}") from error
        return found

    def _whole(self, messages: Sequence[Raw]) -> Raw:
        return Raw(msgspec.json.encode([*map(_without_marks, messages)] if self.strips_marks else messages))

    def _new_name(self, said: bytes) -> str:
        """Return a name made from the content, unique among sessions that begin alike and stable for the same log."""
        name = f"log-{said.hex()[:24]}"
        return next(found for n in count(1) if (found := f"{name}-{n}") not in self.sessions)

    def _find(self, session: str, prefixes: Sequence[bytes]) -> _Seen | None:
        """Return the named session, or the one whose last body this body repeats the most of."""
        if session:
            return self.sessions.get(session)
        found = next((self.ends[said] for said in reversed(prefixes[1:]) if said in self.ends), None)
        return None if found is None else self.sessions[found]

    def _note(self, now: _Seen, before: _Seen, *, named: bool) -> None:
        self.ends.pop(before.said, None)
        self.sessions[now.session] = now
        self.sessions.move_to_end(now.session)
        if not named:
            self.ends[now.said] = now.session
        if len(self.sessions) > _MOST_SESSIONS:
            _, oldest = self.sessions.popitem(last=False)
            self.ends.pop(oldest.said, None)


def _listed(given: Raw, root: str) -> list[Raw]:
    try:
        if root != "input":
            return msgspec.json.decode(given, type=list[Raw])
        # Responses allows a text for the user's only message, and messages without a type.
        items = msgspec.json.decode(given, type=str | list[dict[str, Raw]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("wrong_type", f"expected a list of messages: {error}", path=root) from error
    listed = [{"role": "user", "content": items}] if isinstance(items, str) else items
    return [Raw(msgspec.json.encode({"type": "message", **item} if "role" in item else item)) for item in listed]


def _opening(target: str, setting: Mapping[str, Raw]) -> SessionOpened:
    head = read_setting(dict(setting))
    system: object = [] if head.system is None else head.system
    # Unchanged, so that their schemas stay byte for byte.
    tools = _items(setting.get("tools")) or _items(_member(setting.get("toolConfig"), "tools"))
    tools = tools or [{"functions": each} for each in _items(setting.get("functions"))]
    return SessionOpened(
        targets=(target,),
        model=head.model,
        system=Raw(msgspec.json.encode(system)),  # null would be the worker's default
        tools=Raw(msgspec.json.encode(tools)),
        params=head.params,
    )


def _items(value: Raw | None) -> list[Any]:
    """Return the items of a list, or of a value in its place."""
    found = None if value is None else msgspec.json.decode(value, type=list[Raw] | dict[str, Raw] | None)
    return found if isinstance(found, list) else [] if found is None else [found]


def _member(value: Raw | None, name: str) -> Raw | None:
    found = None if value is None else msgspec.json.decode(value, type=dict[str, Raw] | None)
    return None if found is None else found.get(name)


def _without_marks(message: Raw) -> Raw:
    """Return a message to append, without cache breakpoints: all together would be too many."""
    if may_have_marks(bytes(message)):
        return Raw(msgspec.json.encode(unmarked(msgspec.json.decode(message))))
    return message


def _readable(messages: Sequence[Raw]) -> bool:
    try:
        read(list(messages))
    except InputError:
        return False
    return True


def _waits(new: Sequence[Raw]) -> bool:
    """Return whether the last message makes a request due: it is the user's, and no call is open."""
    turns = [turn for message in new for turn in read_message(bytes(message), index=0)[0]]
    blocks = [block for turn in turns for block in turn.blocks]
    opened = sum(isinstance(block, ToolUse) for block in blocks)
    answered = sum(isinstance(block, ToolResult) for block in blocks)
    if not turns or turns[-1].role != "user":
        return False
    return answered >= opened or not isinstance(turns[-1].blocks[-1], ToolResult)


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _digest_of(part: bytes, sha256: bytes) -> bytes:
    """Return the digest of two parts, by the SHA-256 of the second one."""
    return hashlib.sha256(hashlib.sha256(part).digest() + sha256).digest()


def _id(chain: bytes, number: int) -> str:
    return f"log-{chain.hex()[:32]}-{number}"
