"""The conversations of the last requests, so that a request costs what its new messages cost.

This state only saves time: without it a request is repaired in the same way. A conversation is recognised by its
bytes: everything but the list of messages is equal, and the list begins with the messages of the last request. Any
other request is read as a whole.
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
from reknit.pipeline.stages.content import ROOTS

# Memory for all conversations at most, by an estimate.
_MOST_BYTES: Final = 64 * 1024 * 1024
# A conversation has its last body, its settled messages as bytes, and objects for each message.
_BYTES_OF_MESSAGE: Final = 2048
_messages: Final = msgspec.json.Decoder(list[Raw]).decode

# The endpoint, the first message, and every member of the body but the messages.
_Key: TypeAlias = tuple[Endpoint, bytes, frozenset[tuple[str, bytes]]]


class _Known(Struct, frozen=True):
    """A conversation after its last request; ``size`` is its memory by an estimate."""

    policy: Policy
    answered: Mapping[int, bool]
    messages: list[Raw]
    document: GrowingDocument
    size: int


class KnownConversations:
    """Repairs bodies, each with what is known of its conversation.

    Args:
        most_bytes: memory for all conversations at most, by an estimate; the ones used longest ago are forgotten first.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._size = 0

    def normalized(
        self,
        data: bytes,
        members: Mapping[str, Raw],
        endpoint: Endpoint,
        policy: Policy,
        answered: Mapping[int, bool],
    ) -> tuple[Normalized, End]:
        """Return the same as ``normalize_answered``, and know the conversation from now on.

        Args:
            data: a body.
            members: of the body.
            endpoint: that the body is for.
            policy: of repair, without scaled media.
            answered: as of ``normalize_answered``. A conversation is read again whenever there are others.

        Raises:
            InputError: the body cannot be used.
        """
        messages = _messages_in(members)
        if not messages:
            return _ended(_begun(data, endpoint, policy, answered))
        key = _key_of(endpoint, messages[0], members)
        document = self._grown(key, messages, policy, answered) or _begun(data, endpoint, policy, answered)
        done = _ended(document)
        self._keep(key, _Known(policy, answered, messages, document, 2 * len(data) + _BYTES_OF_MESSAGE * len(messages)))
        return done

    def _grown(
        self, key: _Key, messages: list[Raw], policy: Policy, answered: Mapping[int, bool]
    ) -> GrowingDocument | None:
        """Return the document of the last request with the new messages; None if it is not known, or must be read."""
        known = self._known.pop(key, None)
        if known is None:
            return None
        self._size -= known.size
        count = len(known.messages)
        if (known.policy, known.answered) != (policy, answered) or known.messages != messages[:count]:
            return None
        try:
            is_grown = known.document.add([bytes(message) for message in messages[count:]])
        except InputError:  # the whole body is read, and has the error
            return None
        return known.document if is_grown else None

    def _keep(self, key: _Key, known: _Known) -> None:
        self._known[key] = known
        self._size += known.size
        while self._size > self._most_bytes:
            _, forgotten = self._known.popitem(last=False)
            self._size -= forgotten.size


def _begun(data: bytes, endpoint: Endpoint, policy: Policy, answered: Mapping[int, bool]) -> GrowingDocument:
    return GrowingDocument(data, target_named(endpoint.target), policy, model=endpoint.model or None, answered=answered)


def _ended(document: GrowingDocument) -> tuple[Normalized, End]:
    made = document.request()
    return made, end_of(made.account)


def _messages_in(members: Mapping[str, Raw]) -> list[Raw]:
    """Return the messages of a body; none where several members, or no list, may be its messages."""
    lists = [members[name] for name in ROOTS if name in members]
    try:
        return _messages(lists[0]) if len(lists) == 1 else []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def _key_of(endpoint: Endpoint, first: Raw, members: Mapping[str, Raw]) -> _Key:
    head = frozenset((name, bytes(value)) for name, value in members.items() if name not in ROOTS)
    return endpoint, bytes(first), head
