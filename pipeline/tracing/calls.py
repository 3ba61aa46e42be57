"""Calls of providers and outputs of a worker, as they are traced; without OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from reknit.pipeline.client.answers import AnswerFacts
from reknit.pipeline.stages.base import Output


class Call(Struct, frozen=True, kw_only=True):
    """A call of a provider.

    Attributes:
        target: whom the request was written for.
        model: of the request, or "".
        session: of the request, or "".
        url: of the endpoint, whose host and port the span has; "" for a program.
        trace: the trace headers of the request.
    """

    target: str
    model: str = ""
    session: str = ""
    url: str = ""
    trace: Mapping[str, str] = {}


class Outcome(Struct, kw_only=True):
    """The outcome of a call.

    Attributes:
        status: the HTTP status, if there is one.
        error: why the call failed, as a code without content; "" if it did not.
        answer: its id, model, stop reason and tokens.
        fixes: the number of fixes of the request, by code, if they were made for this call.
        healed: the healings of the request, in order.
    """

    status: int | None = None
    error: str = ""
    answer: AnswerFacts = AnswerFacts()
    fixes: Mapping[str, int] = {}
    healed: tuple[str, ...] = ()


class OpenCall:
    """A call in progress. ``trace`` goes to the provider; ``outcome`` is set as it becomes known."""

    def __init__(self, trace: Mapping[str, str]) -> None:
        self.trace = trace
        self.outcome = Outcome()

    def end(self) -> None:
        """End the call."""


class Tracing:
    """Traces nothing; the base of ``exporting.OtelTracing``."""

    is_on = False

    def begin_call(self, call: Call) -> OpenCall:
        """Begin a call of a provider."""
        return OpenCall(call.trace)

    def on_written(self, topic: str, partition: int, outputs: Sequence[Output], seconds: float) -> None:
        """Take the outputs of a committed batch of a source topic, which began ``seconds`` ago."""

    def close(self) -> None:
        """Export what is left."""

    async def aclose(self) -> None:
        """Export what is left, without blocking the event loop."""
        await asyncio.to_thread(self.close)
