"""A history as the checks take it: its messages, what stands beside them, and the JSON that is normalised."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from pipeline.errors import InputError

History: TypeAlias = Sequence[Any] | Mapping[str, Any] | bytes | str
"""A list of messages, a document that holds one and what stands beside it, their JSON text, or a transcript."""


# Under which key a document has its messages: Reknit's own and most providers', OpenAI Responses', Gemini's.
_KEYS: Final = ("messages", "input", "contents")


class Given(Struct, frozen=True):
    """A history taken apart; a transcript has no ``messages``, only its ``text``. ``key`` is the messages' in JSON."""

    messages: list[Any]
    beside: dict[str, Any]
    text: bytes = b""
    key: str = "messages"

    @property
    def document(self) -> bytes:
        """What ``normalize`` reads."""
        return self.text or self.upto(len(self.messages))

    @property
    def model(self) -> str | None:
        """The model that the document names."""
        model = self.beside.get("model")
        return model if isinstance(model, str) else None

    def upto(self, count: int) -> bytes:
        """The document of the first ``count`` messages."""
        return encoded({**self.beside, self.key: self.messages[:count]})


def take(history: History, setting: Mapping[str, Any]) -> Given:
    """Take a history apart; ``setting`` stands beside its messages where the history itself says nothing.

    Raises:
        InputError: neither a list of messages nor a document that holds one.
    """
    value: Any = history
    if isinstance(history, (bytes, str)):
        try:
            value = json.loads(history)
        except ValueError:
            return Given([], {}, history if isinstance(history, bytes) else history.encode())
    beside, key = dict(setting), _KEYS[0]
    if isinstance(value, Mapping):
        key = next((key for key in _KEYS if key in value), key)
        beside |= {name: part for name, part in value.items() if name != key}
        value = value.get(key)
    if not isinstance(value, Sequence) or isinstance(value, (bytes, str)):
        raise InputError("wrong_type", "expected a list of messages, or a document with messages")
    return Given(list(value), beside, key=key)


def encoded(value: object) -> bytes:
    """JSON with everything beyond ASCII escaped, so that a lone surrogate can be written as well."""
    return json.dumps(value, separators=(",", ":")).encode()
