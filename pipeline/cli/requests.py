"""Turns of sessions from the request bodies in an HTTP log of a platform.

Each line of the log is one request. A body repeats its conversation from the start. One that continues the last body of
a session appends only the new messages; any other restores the session's history. If a line names no session, the body
belongs to the session that it continues, or else begins one that is named after its content. The same log gives the
same records with the same ids, so a feed that was interrupted can be repeated.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct, field, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read, read_message, read_setting
from reknit.pipeline.model import ToolResult, ToolUse
from reknit.pipeline.serve.endpoints import endpoint_of
from reknit.pipeline.stages.defaults import chains_in
from reknit.pipeline.validation import validate
from reknit.topics.headers import Headers
from reknit.topics.records import HistoryRestored, RequestWanted, SessionOpened, TurnAppended, TurnRecord
from reknit.topics.trace import CARRIED, trace_headers

# Members by which logs name each value; the first that exists counts.
_BODY: Final = ("body", "request.body", "request_body", "request.content", "request.postData.text", "request")
_URL: Final = ("url", "request.url", "uri", "request_uri", "path", "request.path", "x-envoy-original-path")
_HOST: Final = ("host", "request.host", "authority", "upstream_host")

# The base URL of a client; some platforms log it in place of a request's URL.
_BASE: Final = re.compile(r"/v1/?$")
_ROOTS: Final = ("messages", "contents", "input")
# Cache breakpoints move from request to request and are not part of a message.
_MARKS: Final = frozenset({"cache_control", "cachePoint"})
# Most sessions in memory; an older one is restored as a whole.
_MOST_SESSIONS: Final = 100_000


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
        """Return the value of the header `judged`: the target, and the rules that the request broke as it was sent."""
        body = self.body if not self.model else {**self.body, "model": self.model}
        found = validate(msgspec.json.encode(body), self.target, self.model or None)
        broken = dict.fromkeys(each.rule for each in found if each.severity == "hard")
        return " ".join((self.target, *broken)).encode()


class Places(Struct, frozen=True, kw_only=True):
    """Dotted names of a line's members, "" for the usual ones. ``target`` is the provider of all requests."""

    session: str = ""
    producer: str = ""
    target: str = ""


def read_line(line: bytes, places: Places) -> Logged:
    """Read one line of a log.

    Raises:
        InputError: the line or its body is no JSON object, or its provider is unknown.
    """
    try:
        logged = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not_json", f"a line is one JSON object: {error}") from error
    body = _body_of(logged)
    url = urlsplit(str(_first(logged, _URL) or ""))
    target, model = _whose(url.path, url.netloc or str(_first(logged, _HOST) or ""), body)
    if not (places.target or target):
        raise InputError(
            "provider_unknown", f"no provider has the endpoint {url.path or 'without a path'}: give --target"
        )
    return Logged(
        target=places.target or target,
        body=body,
        session=_named(logged, places.session),
        producer=_named(logged, places.producer),
        model=model,
        trace=trace_headers(
            {name: str(value) for name in CARRIED if (value := _first(logged, _places_of(name))) is not None}
        ),
    )


def _places_of(header: str) -> tuple[str, ...]:
    """Return the places where logs have a header of a request."""
    return f"headers.{header}", f"request.headers.{header}", header


def _body_of(logged: dict[str, Any]) -> dict[str, Raw]:
    bodies = [_at(logged, place) for place in _BODY]
    if any(root in logged for root in _ROOTS):
        bodies = [logged]  # the line is the body
    for found in bodies:
        if isinstance(found, (str, dict)):
            try:
                given = found.encode() if isinstance(found, str) else msgspec.json.encode(found)
                body = msgspec.json.decode(given, type=dict[str, Raw])
            except (msgspec.DecodeError, UnicodeError):
                continue
            if any(root in body for root in _ROOTS):
                return body
    raise InputError("no_body", "no request body with messages, contents or an input")


def _whose(path: str, host: str, body: Mapping[str, Raw]) -> tuple[str, str]:
    if "messages" in body and _BASE.search(path):
        path = "/chat/completions"
    endpoint = endpoint_of(path, host)
    if endpoint is not None:
        return endpoint.target, endpoint.model
    if path:
        return "", ""
    return ("gemini" if "contents" in body else "openai-responses" if "input" in body else ""), ""


def _first(logged: Mapping[str, Any], places: Sequence[str]) -> object:
    return next((found for place in places if (found := _at(logged, place)) is not None), None)


def _named(logged: Mapping[str, Any], place: str) -> str:
    found = _at(logged, place) if place else None
    return "" if found is None else str(found)


def _at(logged: object, place: str) -> Any:  # noqa: ANN401  whatever the log holds
    """Return the value at a dotted name; the case of header names does not matter."""
    found = logged
    for name in place.split("."):
        if isinstance(found, str) and found.startswith("{"):
            try:
                found = msgspec.json.decode(found)
            except msgspec.DecodeError:
                return None
        if isinstance(found, list):  # headers as HAR and others have them
            found = {each.get("name", each.get("key")): each.get("value") for each in found if isinstance(each, dict)}
        if not isinstance(found, dict):
            return None
        found = found.get(name, next((value for key, value in found.items() if str(key).lower() == name.lower()), None))
    return found


class _Seen(Struct):
    """The last body of a session: digests of its messages, of its other members, and of all messages before it."""

    session: str
    said: bytes
    count: int
    setting: bytes
    chain: bytes = b""


class Conversations(Struct):
    """Turns bodies into records, and remembers the last body of each session."""

    sessions: OrderedDict[str, _Seen] = field(default_factory=OrderedDict)
    # Sessions that no log names, by the digest of their last body.
    ends: dict[bytes, str] = field(default_factory=dict)

    def records_of(self, logged: Logged) -> tuple[str, list[TurnRecord]]:
        """Return the session of a request and its new records; no records if the body repeats the previous one.

        Raises:
            InputError: its messages are no list, or its other members cannot be read.
        """
        body = dict(logged.body)
        root = next(name for name in _ROOTS if name in body)
        messages = _listed(body.pop(root), root)
        if logged.model:
            body.setdefault("model", Raw(msgspec.json.encode(logged.model)))
        opened = _opening(logged.target, body)
        if chains_in(opened.params or {}):
            # Only the provider knows the earlier messages: the worker's dead letter reports that it was not judged.
            return logged.session or "log-chained", [opened]
        setting = _digest(msgspec.json.encode(opened))
        prefixes = _prefixes(_digest(logged.target.encode()), messages)
        seen = self._find(logged.session, prefixes)
        goes_on = seen is not None and seen.count <= len(messages) and seen.said == prefixes[seen.count]
        if seen is None:
            seen = _Seen(session=logged.session or self._new_name(prefixes[-1]), said=b"", count=0, setting=b"")
        elif goes_on and seen.count == len(messages) and seen.setting == setting:
            return seen.session, []
        chain = _digest(seen.session.encode(), seen.chain, prefixes[-1], setting)
        records: list[TurnRecord] = []
        if seen.setting != setting:
            records.append(structs.replace(opened, id=_id(chain, 0)))
        new = messages[seen.count :] if goes_on else []
        if not _readable(new or messages):
            # The worker's dead letter reports why it was not judged.
            return seen.session, [*records, HistoryRestored(messages=Raw(msgspec.json.encode(messages)))]
        if new:
            records += [TurnAppended(message=_without_marks(each), id=_id(chain, at)) for at, each in enumerate(new, 1)]
        elif not goes_on:
            records.append(HistoryRestored(messages=Raw(msgspec.json.encode(messages)), id=_id(chain, 1)))
        if not (new and _waits(new)):
            records.append(RequestWanted(id=_id(chain, len(messages) + 1)))
        self._note(_Seen(seen.session, prefixes[-1], len(messages), setting, chain), seen, named=bool(logged.session))
        return seen.session, records

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


def _prefixes(first: bytes, messages: Sequence[Raw]) -> list[bytes]:
    """Return the digests of the first 0, 1, 2 … messages without their cache breakpoints."""
    found = [first]
    try:
        for message in messages:
            said = msgspec.json.encode(_unmarked(msgspec.json.decode(message), compared=True), order="deterministic")
            found.append(_digest(found[-1], said))
    except RecursionError as error:
        raise InputError("too_deep", "a message is nested too deeply", path=f"messages.{len(found) - 1}") from error
    return found


def _without_marks(message: Raw) -> Raw:
    """Return a message to append, without cache breakpoints: all together would be too many."""
    if any(mark.encode() in bytes(message) for mark in _MARKS):
        return Raw(msgspec.json.encode(_unmarked(msgspec.json.decode(message))))
    return message


def _unmarked(value: Any, *, compared: bool = False) -> Any:  # noqa: ANN401  JSON
    """Return a message without cache breakpoints; if ``compared``, its text becomes a block."""
    if isinstance(value, list):
        kept = (each for each in value if not (isinstance(each, dict) and each and each.keys() <= _MARKS))
        return [_unmarked(each, compared=compared) for each in kept]
    if isinstance(value, dict):
        found = {name: _unmarked(each, compared=compared) for name, each in value.items() if name not in _MARKS}
        if compared and isinstance(found.get("content"), str):
            found["content"] = [{"type": "text", "text": found["content"]}]
        return found
    return value


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


def _id(chain: bytes, number: int) -> str:
    return f"log-{chain.hex()[:32]}-{number}"
