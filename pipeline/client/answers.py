"""Read one answer: which bytes to publish, and whether the answer is complete.

Bytes are published up to the end of an event. A killed sender therefore leaves no partial event, which would corrupt
the first event of the next attempt. An answer that is one JSON document is published at its end.

The decoder of the source finds the final event (``Source.final``). HTTP cannot report a cut: without a length, a closed
connection ends a complete answer and a cut one alike. An answer without its final event was cut.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import UNSET, Struct, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.losses import CODE
from reknit.pipeline.streams.events import (
    BlockStarted,
    Event,
    Failed,
    MessageDelta,
    MessageStarted,
    Notice,
    Retried,
    Rewritten,
    UsageKnown,
    WholeMessage,
)
from reknit.pipeline.streams.framing import MOST_TAIL, Tail, is_object
from reknit.pipeline.streams.source import Source
from reknit.topics.headers import Framing
from reknit.topics.items import Usage

# Codes of errors in a stream that another attempt may not meet: Anthropic, OpenAI, Bedrock, Google.
_MAY_PASS: Final = frozenset(
    {
        *("overloaded_error", "api_error", "rate_limit_error", "timeout_error"),
        *("server_error", "internal_server_error", "rate_limit_exceeded", "service_unavailable", "timeout"),
        *("internalServerException", "modelStreamErrorException", "modelTimeoutException"),
        *("serviceUnavailableException", "throttlingException"),
        *("UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"),
        *("429", "500", "502", "503", "504", "529"),
    }
)
# Codes of errors in a stream that refuse the request, as a status does before it: openclaw#95819, openai/codex#8128,
# caozhiyuan/copilot-api#307. `BadRequestError` is vLLM's; codes of images are those of `ResponseError` of OpenAI.
_REFUSALS: Final = frozenset(
    {
        *("invalid_request_error", "not_found_error", "request_too_large"),
        *("invalid_encrypted_content", "invalid_request_body", "invalid_prompt", "invalid_value", "bad_request"),
        *("previous_response_not_found", "unsupported_parameter", "unsupported_value", "string_above_max_length"),
        *("invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url", "invalid_image_mode"),
        *("image_too_large", "image_too_small", "image_parse_error", "image_file_too_large", "image_file_not_found"),
        *("unsupported_image_media_type", "empty_image_file", "failed_to_download_image", "BadRequestError"),
        *("image_content_policy_violation", "NotFoundError", "UnprocessableEntityError"),
        *("validationException", "ValidationException", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND"),
        *("PERMISSION_DENIED", "400", "403", "404", "413", "422"),
    }
)
# Events that announce an answer, or say something about it.
_WITHOUT_CONTENT: Final = (MessageStarted, BlockStarted, UsageKnown, Notice, Retried, Rewritten, Failed)
# Codes go into logs; a server can send any text as one.
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class StreamFailure(Struct, frozen=True):
    """An error that the provider reports in its stream; ``may_pass``: another attempt may succeed."""

    code: str
    may_pass: bool

    @property
    def is_refusal(self) -> bool:
        """True if the provider refuses the request, as it does with a status before a stream."""
        return self.code in _REFUSALS


class AnswerFacts(Struct, frozen=True):
    """The id, model, stop reason and tokens of an answer; the last values count."""

    message_id: str = ""
    model: str = ""
    stop_reason: str = ""
    usage: Usage | None = None


class AnswerReader:
    """Reads one answer.

    Attributes:
        facts: its id, model, stop reason and tokens.
        is_whole: the final event has come.
        failure: the last error in the stream.
        has_content: output of the model has come.
        losses: the number of blocks of the request that the provider left out, as its answer reports.

    Args:
        source: the source of the events.
        framing: ``events``: each piece is one event; ``bytes``: a piece may end inside an event.
    """

    def __init__(self, source: Source, framing: Framing) -> None:
        self._final = source.final
        self._decoder = source.decoder()
        self._framing = framing
        self._tail = Tail()
        # Not published yet: keep-alives before the first event, an error before any event, a document.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_document: bool | None = None  # None before the first byte that is not white space
        self._has_begun = False
        self.facts = AnswerFacts()
        self.is_whole = False
        self.failure: StreamFailure | None = None
        self.has_content = False
        self.losses = 0

    def take(self, data: bytes, *, is_document: bool = False) -> bytes:
        """Take the next piece and return the bytes to publish now.

        Args:
            data: the piece.
            is_document: the response declares one JSON document.

        Raises:
            InputError: an event or a document exceeds the size of a record.
        """
        if self._is_document is None:
            # Servers send white space before a document to keep the connection open.
            first = data.lstrip()[:1]
            self._is_document = (is_document and first == b"{") if first else None
        if self._is_document is not False:
            self._hold(data)
            return b""
        whole = self._whole_events(data)
        if not whole:
            return b""
        events = self._decoder.feed(whole)
        self._note(events)
        self._hold(whole)
        self._has_begun = self._has_begun or any(not isinstance(event, Failed) for event in events)
        return self._release() if self._has_begun else b""

    def finish(self) -> bytes:
        """End the answer, complete or cut, and return the rest of its bytes."""
        held, tail = self._release(), self._tail.flush()
        rest = held if self._is_document else tail
        if rest.strip():
            self._note(self._decoder.feed(rest))
            if self._is_document and is_object(rest.strip()):
                self.is_whole = self.failure is None
        self._note(self._decoder.end_run())
        return held + tail

    def _whole_events(self, data: bytes) -> bytes:
        if self._framing == "events":
            return data
        whole, lost = self._tail.push(data, self._decoder.framing)
        if lost:
            raise InputError("too_large", f"an event exceeds {MOST_TAIL} bytes")
        return whole

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MOST_TAIL:
            raise InputError("too_large", f"a document exceeds {MOST_TAIL} bytes")

    def _release(self) -> bytes:
        separator = b"\n" if self._framing == "events" else b""
        held = separator.join(self._held)
        self._held, self._held_bytes = [], 0
        return held

    def _note(self, events: list[Event]) -> None:
        for event in events:
            self.has_content = self.has_content or not isinstance(event, _WITHOUT_CONTENT)
            self._note_facts(event)
            if isinstance(event, Rewritten):
                self.losses += event.code == CODE
            elif isinstance(event, Failed):
                code = event.code if _CODE.fullmatch(event.code) else ""
                self.failure = StreamFailure(code, event.code in _MAY_PASS)
            elif isinstance(event, MessageStarted):
                self.is_whole = False  # another message begins in the same answer
            elif isinstance(event, self._final) and not (isinstance(event, MessageDelta) and event.stop_reason is None):
                self.is_whole = True

    def _note_facts(self, event: Event) -> None:
        match event:
            case MessageStarted(message_id, model) | WholeMessage(message_id=message_id, model=model):
                self._set_facts(message_id=message_id, model=model)
            case MessageDelta(stop_reason=str(reason)):
                self._set_facts(stop_reason=reason)
            case UsageKnown(usage, model):
                self._set_facts(usage=usage, model=model)
            case _:
                return
        if isinstance(event, WholeMessage) and event.usage is not UNSET:
            self._set_facts(usage=event.usage)

    def _set_facts(self, **known: str | Usage | None) -> None:
        self.facts = structs.replace(self.facts, **{name: value for name, value in known.items() if value})
