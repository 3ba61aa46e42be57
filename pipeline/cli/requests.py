"""Bodies that a platform sends to its providers, read from a log of HTTP, as turns of sessions.

Each line of the log is one request. A body repeats its conversation from the start, so one that goes on from the last
body of a session appends only what is new; any other restores the session's history. Where nothing names the session,
a body belongs to the one that it goes on from, else it begins one that is named after its content. The same log gives
the same records under the same ids, so that a feed that broke off can begin again.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Raw, Struct, field, structs

from pipeline.errors import InputError
from pipeline.history.readers import read, read_message, read_setting
from pipeline.model import ToolResult, ToolUse
from pipeline.rules import validate
from pipeline.stages.defaults import chains_in
from topics.records import HistoryRestored, RequestWanted, SessionOpened, TurnAppended, TurnRecord

# Where logs have what is asked for; the first place that there is counts.
_BODY: Final = ("body", "request.body", "request_body", "request.content", "request.postData.text", "request")
_URL: Final = ("url", "request.url", "uri", "request_uri", "path", "request.path", "x-envoy-original-path")
_HOST: Final = ("host", "request.host", "authority", "upstream_host")

# The end of a URL's path, and whose request it is. Others than these (models, tokens, batches) ask a model nothing.
_PATHS: Final = (
    (re.compile(r"/messages$"), "anthropic"),
    (re.compile(r"/publishers/anthropic/models/(?P<model>[^/:]+):(streamR|r)awPredict$"), "anthropic"),
    (re.compile(r"/model/(?P<model>[^/]+)/converse(-stream)?$"), "bedrock-converse"),
    (re.compile(r"/model/(?P<model>[^/]*anthropic[^/]*)/invoke(-with-response-stream)?$"), "anthropic"),
    (re.compile(r"/models/(?P<model>[^/:]+):(streamG|g)enerateContent$"), "gemini"),
    (re.compile(r"/chat/completions$"), "openai-chat"),
    (re.compile(r"/responses$"), "openai-responses"),
)
# The address that clients of such an API are given, for all that they ask; some log it in place of a request's own.
_BASE: Final = re.compile(r"/v1/?$")
# Whose chats OpenAI's rules judge; all other hosts imitate them.
_OPENAI: Final = re.compile(r"(^|\.)(openai\.com|azure\.com)(:\d+)?$")
_ROOTS: Final = ("messages", "contents", "input")
# Where a cache begins moves from request to request; it is no part of what was said.
_MARKS: Final = frozenset({"cache_control", "cachePoint"})
# Sessions that are remembered; one that was silent for longer is restored.
_MOST_SESSIONS: Final = 100_000


class Logged(Struct, frozen=True):
    """One request of the log. ``session`` is "" where the log names none, ``model`` where the URL does not."""

    target: str
    body: dict[str, Raw]
    session: str = ""
    producer: str = ""
    model: str = ""

    @property
    def judged(self) -> bytes:
        """The target and the rules that the request breaks as it was sent, for the header of that name."""
        body = self.body if not self.model else {**self.body, "model": self.model}
        found = validate(msgspec.json.encode(body), self.target, self.model or None)
        broken = dict.fromkeys(each.rule for each in found if each.severity == "hard")
        return " ".join((self.target, *broken)).encode()


class Places(Struct, frozen=True, kw_only=True):
    """Where a line has what: dotted names of members, "" where it has none. ``target`` is whose requests all are."""

    session: str = ""
    producer: str = ""
    target: str = ""


def read_line(line: bytes, places: Places) -> Logged:
    """Read one line of a log.

    Raises:
        InputError: it is no JSON object, has no body that is one, or nobody knows whose request it is.
    """
    try:
        logged = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not_json", f"a line is one JSON object: {error}") from error
    body = _body_of(logged)
    url = urlsplit(str(_first(logged, _URL) or ""))
    target, model = _whose(url.path, url.netloc or str(_first(logged, _HOST) or ""), body)
    if not (places.target or target):
        raise InputError("provider_unknown", f"nobody's known endpoint: {url.path or 'no url'}; name it with --target")
    return Logged(
        target=places.target or target,
        body=body,
        session=_named(logged, places.session),
        producer=_named(logged, places.producer),
        model=model,
    )


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
    for pattern, target in _PATHS:
        if found := pattern.search(path):
            model = unquote(found.groupdict().get("model", ""))
            imitates = target == "openai-chat" and host and not _OPENAI.search(host)
            return "vllm" if imitates else target, model
    if path:
        return "", ""
    return ("gemini" if "contents" in body else "openai-responses" if "input" in body else ""), ""


def _first(logged: Mapping[str, Any], places: Sequence[str]) -> object:
    return next((found for place in places if (found := _at(logged, place)) is not None), None)


def _named(logged: Mapping[str, Any], place: str) -> str:
    found = _at(logged, place) if place else None
    return "" if found is None else str(found)


def _at(logged: object, place: str) -> Any:  # noqa: ANN401  whatever the log holds
    """What stands at a dotted name; names of headers are found in any case."""
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
    """The last body of a session: its messages and what stands beside them as digests, and all before it as one."""

    session: str
    said: bytes
    count: int
    beside: bytes
    chain: bytes = b""


class Conversations(Struct):
    """Makes turns of bodies, and remembers where each session stands."""

    sessions: OrderedDict[str, _Seen] = field(default_factory=OrderedDict)
    # Sessions that no log names, by the digest of their last body.
    ends: dict[bytes, str] = field(default_factory=dict)

    def records_of(self, logged: Logged) -> tuple[str, list[TurnRecord]]:
        """The session of a request and its new records: none where the body is the one before it again.

        Raises:
            InputError: its messages are no list, or what stands beside them cannot be read.
        """
        body = dict(logged.body)
        root = next(name for name in _ROOTS if name in body)
        messages = _listed(body.pop(root), root)
        if logged.model:
            body.setdefault("model", Raw(msgspec.json.encode(logged.model)))
        opened = _opening(logged.target, body)
        if chains_in(opened.params or {}):
            # Only the provider knows what was said before: the worker's dead letter tells that it was not judged.
            return logged.session or "log-chained", [opened]
        beside = _digest(msgspec.json.encode(opened))
        prefixes = _prefixes(_digest(logged.target.encode()), messages)
        seen = self._find(logged.session, prefixes)
        goes_on = seen is not None and seen.count <= len(messages) and seen.said == prefixes[seen.count]
        if seen is None:
            seen = _Seen(session=logged.session or self._new_name(prefixes[-1]), said=b"", count=0, beside=b"")
        elif goes_on and seen.count == len(messages) and seen.beside == beside:
            return seen.session, []
        chain = _digest(seen.session.encode(), seen.chain, prefixes[-1], beside)
        records: list[TurnRecord] = []
        if seen.beside != beside:
            records.append(structs.replace(opened, id=_id(chain, 0)))
        new = messages[seen.count :] if goes_on else []
        if not _readable(new or messages):
            # The worker's dead letter tells why it was not judged.
            return seen.session, [*records, HistoryRestored(messages=Raw(msgspec.json.encode(messages)))]
        if new:
            records += [TurnAppended(message=_without_marks(each), id=_id(chain, at)) for at, each in enumerate(new, 1)]
        elif not goes_on:
            records.append(HistoryRestored(messages=Raw(msgspec.json.encode(messages)), id=_id(chain, 1)))
        if not (new and _waits(new)):
            records.append(RequestWanted(id=_id(chain, len(messages) + 1)))
        self._note(_Seen(seen.session, prefixes[-1], len(messages), beside, chain), seen, named=bool(logged.session))
        return seen.session, records

    def _new_name(self, said: bytes) -> str:
        """A name after what is said, so that the same log names it alike; others may have begun with the same words."""
        name = f"log-{said.hex()[:24]}"
        return next(found for n in count(1) if (found := f"{name}-{n}") not in self.sessions)

    def _find(self, session: str, prefixes: Sequence[bytes]) -> _Seen | None:
        """The session that is named, or the one whose last body this one repeats the most of."""
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
        # Responses takes a text for the user's only message, and messages that do not say that they are one.
        items = msgspec.json.decode(given, type=str | list[dict[str, Raw]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("wrong_type", f"expected a list of messages: {error}", path=root) from error
    listed = [{"role": "user", "content": items}] if isinstance(items, str) else items
    return [Raw(msgspec.json.encode({"type": "message", **item} if "role" in item else item)) for item in listed]


def _opening(target: str, beside: Mapping[str, Raw]) -> SessionOpened:
    head = read_setting(dict(beside))
    system: object = [] if head.system is None else head.system
    # As they came, so that their schemas stay as they are.
    tools = _items(beside.get("tools")) or _items(_member(beside.get("toolConfig"), "tools"))
    tools = tools or [{"functions": each} for each in _items(beside.get("functions"))]
    return SessionOpened(
        targets=(target,),
        model=head.model,
        system=Raw(msgspec.json.encode(system)),  # null would be the worker's default
        tools=Raw(msgspec.json.encode(tools)),
        params=head.params,
    )


def _items(value: Raw | None) -> list[Any]:
    """A list, or what stands in the place of one."""
    found = None if value is None else msgspec.json.decode(value, type=list[Raw] | dict[str, Raw] | None)
    return found if isinstance(found, list) else [] if found is None else [found]


def _member(value: Raw | None, name: str) -> Raw | None:
    found = None if value is None else msgspec.json.decode(value, type=dict[str, Raw] | None)
    return None if found is None else found.get(name)


def _prefixes(first: bytes, messages: Sequence[Raw]) -> list[bytes]:
    """The digests of the first none, one, two … messages, whatever cache marks they have."""
    found = [first]
    try:
        for message in messages:
            said = msgspec.json.encode(_unmarked(msgspec.json.decode(message), compared=True), order="deterministic")
            found.append(_digest(found[-1], said))
    except RecursionError as error:
        raise InputError("too_deep", "a message is nested too deeply", path=f"messages.{len(found) - 1}") from error
    return found


def _without_marks(message: Raw) -> Raw:
    """A message that is appended: its marks have moved on, and those of all together would be too many."""
    if any(mark.encode() in bytes(message) for mark in _MARKS):
        return Raw(msgspec.json.encode(_unmarked(msgspec.json.decode(message))))
    return message


def _unmarked(value: Any, *, compared: bool = False) -> Any:  # noqa: ANN401  JSON
    """A message without cache marks; its text is a block where it is to be ``compared``."""
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
    """Whether the last of these messages makes a request due by itself: it is the user's, and no call is open."""
    opened = answered = 0
    for message in new:
        turns, _ = read_message(bytes(message), index=0)
        for turn in turns:
            opened += sum(isinstance(block, ToolUse) for block in turn.blocks)
            answered += sum(isinstance(block, ToolResult) for block in turn.blocks)
    return turns[-1].role == "user" and (answered >= opened or not isinstance(turns[-1].blocks[-1], ToolResult))


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _id(chain: bytes, number: int) -> str:
    return f"log-{chain.hex()[:32]}-{number}"
