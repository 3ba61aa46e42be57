"""The conversations of the last requests, so that a request costs what its new messages cost.

This state only saves time: without it a request is repaired in the same way. A conversation is recognised by its
bytes: everything but the list of messages is equal, and the list begins with the messages of the last request. Any
other request is read as a whole. Each tenant has conversations of its own: otherwise the time of an answer would show a
client that another client has sent the same history.

Clients move cache breakpoints: Claude Code marks the last messages of each request, so the next one has these messages
in other bytes. So a conversation whose last messages changed once is kept with the point before its first message that
may change again, and the next request continues from that point.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.policy import Policy
from reknit.pipeline.registry import target_named
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.session.bindings import End, end_of
from reknit.pipeline.session.documents import GrowingDocument
from reknit.pipeline.session.request import Normalized
from reknit.pipeline.stages.content import ROOTS, may_have_marks

# Memory for all conversations at most, by an estimate.
_MOST_BYTES: Final = 64 * 1024 * 1024
# A conversation has its last messages twice, as a list and one by one, its settled messages as bytes, and objects for
# each message.
_COPIES: Final = 3
_BYTES_OF_MESSAGE: Final = 2048
# The messages at the end that may lose a breakpoint. A request has four breakpoints at most, and clients mark the last
# two messages or the last two turns of the user.
_MOVING: Final = 8
# The first bytes of a list of messages, by which the last list that may have begun in the same way is found.
_START: Final = 256
_messages: Final = msgspec.json.Decoder(list[Raw]).decode

# The tenant, the endpoint, the first message, and every member of the body but the messages.
_Key: TypeAlias = tuple[bytes, Endpoint, bytes, frozenset[tuple[str, bytes]]]


class _Known(Struct, frozen=True):
    """A conversation after its last request; ``size`` is its memory by an estimate.

    ``kept`` is the number of messages of the document's remembered point; 0 without one. It is negative where such a
    document could not be read in two parts: the number of its messages. ``opening`` is the JSON of the messages before
    that point, or of all, without the last bracket; ``start`` is the tenant and its first bytes.
    """

    policy: Policy
    answered: Mapping[int, bool]
    messages: list[Raw]
    document: GrowingDocument
    kept: int
    opening: bytes
    start: tuple[bytes, bytes]
    size: int


class KnownConversations:
    """Repairs bodies, each with what is known of its conversation.

    Args:
        most_bytes: memory for all conversations at most, by an estimate; the ones used longest ago are forgotten first.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        # By the tenant and the start of the list of messages, the conversation that had it last.
        self._last: dict[tuple[bytes, bytes], _Known] = {}
        self._size = 0

    def normalized(
        self,
        data: bytes,
        members: Mapping[str, Raw],
        endpoint: Endpoint,
        policy: Policy,
        answered: Mapping[int, bool],
        *,
        tenant: bytes,
    ) -> tuple[Normalized, End]:
        """Return the same as ``normalize_answered``, and know the conversation from now on.

        Args:
            data: a body.
            members: of the body.
            endpoint: that the body is for.
            policy: of repair, without scaled media.
            answered: as of ``normalize_answered``. A conversation is read again whenever there are others.
            tenant: of the request; a conversation of another tenant is not used.

        Raises:
            InputError: the body cannot be used.
        """
        written = _list_in(members)
        messages = self._messages_in(written, tenant)
        if not messages:
            return _ended(_begun(data, endpoint, policy, answered))
        key = _key_of(tenant, endpoint, messages[0], members)
        known = self._known.pop(key, None)
        if known is not None:
            self._forget(known)
        document, kept = None, 0
        if known is not None and (known.policy, known.answered) == (policy, answered):
            document, kept = _continued(known, members, messages, endpoint)
        document = document or _begun(data, endpoint, policy, answered)
        done = _ended(document)
        size = _COPIES * len(data) + _BYTES_OF_MESSAGE * len(messages)
        opening = b"[" + b",".join(messages[:kept]) if kept > 0 else written[:-1]
        start = tenant, opening[:_START]
        self._keep(key, _Known(policy, answered, messages, document, kept, opening, start, size))
        return done

    def _messages_in(self, written: bytes, tenant: bytes) -> list[Raw]:
        """Return the messages of a list; those of the opening of the tenant's last one are not decoded again."""
        last, same = self._last.get((tenant, written[:_START])), []
        if last is not None and written.startswith(last.opening + b","):
            same = last.messages[: last.kept] if last.kept > 0 else last.messages
            written = b"[" + written[len(last.opening) + 1 :]
        try:
            return same + _messages(written)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []

    def _keep(self, key: _Key, known: _Known) -> None:
        self._known[key] = self._last[known.start] = known
        self._size += known.size
        while self._size > self._most_bytes:
            self._forget(self._known.popitem(last=False)[1])

    def _forget(self, known: _Known) -> None:
        self._size -= known.size
        if self._last.get(known.start) is known:
            del self._last[known.start]


def _begun(data: bytes, endpoint: Endpoint, policy: Policy, answered: Mapping[int, bool]) -> GrowingDocument:
    return GrowingDocument(data, target_named(endpoint.target), policy, model=endpoint.model or None, answered=answered)


def _continued(
    known: _Known, members: Mapping[str, Raw], messages: list[Raw], endpoint: Endpoint
) -> tuple[GrowingDocument | None, int]:
    """Return the document of the next request and its point (``_Known.kept``); None where the whole must be read."""
    grown = _grown(known, messages)
    if grown is not None:
        return grown
    first = _first_marked(messages)
    if not 0 < first < len(messages):
        return None, 0
    # The attempt costs as much as the whole. Some messages, such as images, cannot be added: it may succeed later.
    if known.kept < 0 and len(messages) < _MOVING - known.kept:
        return None, known.kept
    return _begun_before(first, members, messages, endpoint, known) or (None, -len(messages))


def _grown(known: _Known, messages: list[Raw]) -> tuple[GrowingDocument, int] | None:
    """Return the document of the last request with these messages, and its point; None if it must be read."""
    count, document = len(known.messages), known.document
    if known.messages != messages[:count]:
        kept = known.kept
        if kept <= 0 or known.messages[:kept] != messages[:kept]:
            return None
        count = document.back()
    return _added(document, messages, count, known.kept) if count else None


def _begun_before(
    first: int, members: Mapping[str, Raw], messages: list[Raw], endpoint: Endpoint, known: _Known
) -> tuple[GrowingDocument, int] | None:
    """Return the document of a body, read in two parts: the ``first`` messages and the others; None if it cannot be."""
    root = next(name for name in ROOTS if name in members)
    data = msgspec.json.encode({**members, root: messages[:first]})
    try:
        return _added(_begun(data, endpoint, known.policy, known.answered), messages, first, 0)
    except InputError:  # the whole body is read, and has the error
        return None


def _added(document: GrowingDocument, messages: list[Raw], count: int, kept: int) -> tuple[GrowingDocument, int] | None:
    """Add the messages after the first ``count``, and remember the point before those that may change."""
    first = _first_marked(messages)
    try:
        if count <= first < len(messages):
            if not document.add([bytes(message) for message in messages[count:first]]):
                return None
            count = first
            if count != kept:
                kept = count if document.keep_point() else 0
        is_grown = document.add([bytes(message) for message in messages[count:]])
    except InputError:  # the whole body is read, and has the error
        return None
    return (document, kept) if is_grown else None


def _first_marked(messages: list[Raw]) -> int:
    """Return the index of the first of the last messages with a breakpoint; without one the number of messages."""
    count = len(messages)
    # Most clients set none, so one search finds nothing in all of them.
    if not may_have_marks(b"".join(messages[-_MOVING:])):
        return count
    return next((at for at in range(max(0, count - _MOVING), count) if may_have_marks(bytes(messages[at]))), count)


def _ended(document: GrowingDocument) -> tuple[Normalized, End]:
    made = document.request()
    return made, end_of(made.account)


def _list_in(members: Mapping[str, Raw]) -> bytes:
    """Return the JSON of a body's messages; nothing where none or several of its members may be them."""
    lists = [members[name] for name in ROOTS if name in members]
    return bytes(lists[0]) if len(lists) == 1 else b""


def _key_of(tenant: bytes, endpoint: Endpoint, first: Raw, members: Mapping[str, Raw]) -> _Key:
    head = frozenset((name, bytes(value)) for name, value in members.items() if name not in ROOTS)
    return tenant, endpoint, bytes(first), head
