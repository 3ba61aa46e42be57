"""Spans through OpenTelemetry's SDK to a collector (extra ``otel``). Only ``open_tracing`` imports this module."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from reknit.pipeline import __version__
from reknit.pipeline.stages.base import Output
from reknit.pipeline.tracing.calls import Call, OpenCall, Tracing
from reknit.pipeline.tracing.spans import call_span, error_of, outcome_attributes, outcome_events, spans_of

log = logging.getLogger("reknit.tracing")

# A collector that does not answer must not hold up the end of a program: orchestrators kill after 30 s.
_CLOSE_SECONDS: Final = 5.0
# Batches of a worker whose outputs may wait for their spans.
_MOST_WAITING: Final = 8
_NANOSECONDS: Final = 1_000_000_000
_CONTEXT: Final = TraceContextTextMapPropagator()


class Background:
    """Runs work in a thread of its own, in order.

    The spans of a large batch take a second, and an event loop must not wait for them. Work that waits holds outputs in
    memory, so only a few batches may wait; more are dropped, as OpenTelemetry's own queue does with spans.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="spans")
        self._room = threading.Semaphore(_MOST_WAITING)
        self._has_dropped = False

    def run(self, work: Callable[[], None]) -> None:
        """Run work later, or drop it."""
        if self._room.acquire(blocking=False):
            self._pool.submit(self._do, work)
        elif not self._has_dropped:
            self._has_dropped = True
            log.warning("spans are dropped, because batches are written faster than their spans can be made")

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._room.release()

    def close(self) -> None:
        """Wait for all work."""
        self._pool.shutdown()


class OtelTracing(Tracing):
    """Makes spans.

    Args:
        provider: exports them. It is not made the global one, since other code of a process may have its own.
        prefix: of the inputs' topics.
    """

    is_on = True

    def __init__(self, provider: TracerProvider, prefix: str = "") -> None:
        self._background = Background()
        self._provider = provider
        self._tracer = provider.get_tracer("reknit", __version__)
        self._prefix = prefix

    @property
    def resource(self) -> Mapping[str, object]:
        """The attributes of the program that all spans have."""
        return dict(self._provider.resource.attributes)

    def begin_call(self, call: Call) -> OpenCall:
        begun = call_span(call)
        context = _CONTEXT.extract(begun.trace)
        return _OpenSpan(self._tracer.start_span(begun.name, context, SpanKind.CLIENT, attributes=begun.attributes))

    def on_written(self, topic: str, partition: int, outputs: Sequence[Output], seconds: float) -> None:
        end = time.time_ns()
        begin = end - int(seconds * _NANOSECONDS)
        self._background.run(lambda: self._make_spans(topic, partition, outputs, begin, end))

    def _make_spans(self, topic: str, partition: int, outputs: Sequence[Output], begin: int, end: int) -> None:
        for made in spans_of(topic, partition, outputs, self._prefix):
            span = self._tracer.start_span(
                made.name,
                _CONTEXT.extract(made.trace),
                SpanKind.CONSUMER,
                attributes=made.attributes,
                start_time=begin,
            )
            for event in made.events:
                span.add_event(event.name, event.attributes, end)
            if made.error:
                span.set_status(Status(StatusCode.ERROR))
            span.end(end)

    def close(self) -> None:
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    def _close(self) -> None:
        self._background.close()
        self._provider.shutdown()


class _OpenSpan(OpenCall):
    """A call whose span is open. The provider sees the span as its parent, in the trace of the request."""

    def __init__(self, span: Span) -> None:
        trace: dict[str, str] = {}
        _CONTEXT.inject(trace, set_span_in_context(span))
        super().__init__(trace)
        self._span = span

    def end(self) -> None:
        span, outcome = self._span, self.outcome
        span.set_attributes(outcome_attributes(outcome))
        for event in outcome_events(outcome):
            span.add_event(event.name, event.attributes)
        if error_of(outcome):
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def exporting_to(endpoint: str, prefix: str = "") -> OtelTracing:
    """Return the tracing that exports to a collector by OTLP over HTTP; "" is the one of the environment."""
    own = Resource({"service.name": "reknit", "service.version": __version__})
    provider = TracerProvider(
        # The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
        resource=Resource.create(own.merge(OTELResourceDetector().detect()).attributes),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces") if endpoint else OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OtelTracing(provider, prefix)
