"""The losses and the facts of an answer that is one JSON document."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.client.answers import AnswerFacts, AnswerReader
from reknit.pipeline.errors import InputError
from reknit.pipeline.losses import MEMBER, losses_in
from reknit.pipeline.registry import SOURCES, shape_of
from reknit.pipeline.serve.repair import decoded

# Answers of models are far shorter. A longer one is not read.
_MOST_BYTES: Final = 8 * 1024 * 1024


class _Answer(Struct):
    input_transformations: Raw = Raw(b"[]")


_SHAPE: Final = "anthropic"

_answer = msgspec.json.Decoder(_Answer)


def may_have_losses(target: str) -> bool:
    """Return True if answers to requests of a target report losses: only those of Anthropic's shape have the member."""
    return shape_of(target) == _SHAPE


class DocumentWatch:
    """Collects the bytes of one answer.

    Args:
        target: of the request; the source of its answer has the same name.
        encoding: the content encoding of the bytes.
    """

    def __init__(self, target: str, encoding: str) -> None:
        self._target = target
        self._encoding = encoding
        self._data = bytearray()
        self._is_long = False

    def take(self, data: bytes) -> None:
        """Note the next bytes of the answer."""
        self._is_long = self._is_long or len(self._data) + len(data) > _MOST_BYTES
        if self._is_long:
            self._data.clear()
        else:
            self._data += data

    @property
    def losses(self) -> int:
        """The number of blocks of the request that the answer reports as dropped."""
        plain = decoded(bytes(self._data), self._encoding)
        if plain is None or MEMBER.encode() not in plain:
            return 0
        try:
            return sum(1 for _ in losses_in(_answer.decode(plain).input_transformations))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return 0

    @property
    def facts(self) -> AnswerFacts:
        """Its id, model, stop reason and tokens; empty if it is too long or cannot be read."""
        reader = AnswerReader(SOURCES[self._target], "bytes")
        try:
            reader.take(decoded(bytes(self._data), self._encoding) or b"", is_document=True)
            reader.finish()
        except InputError:  # it is longer than a record may be
            return AnswerFacts()
        return reader.facts
