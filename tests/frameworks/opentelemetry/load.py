"""OpenTelemetry's classes load messages, and its exporter sends them; run in the environment of OpenTelemetry."""

import json

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util.genai import types
from opentelemetry.util.genai.handler import TelemetryHandler

from tests.frameworks.rows import each_list

PARTS = {
    "text": types.TextPart,
    "reasoning": types.ReasoningPart,
    "tool_call": types.ToolCallRequestPart,
    "tool_call_response": types.ToolCallResponsePart,
    "blob": types.BlobPart,
    "uri": types.UriPart,
    "file": types.FilePart,
}
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
handler = TelemetryHandler(tracer_provider=provider)


def part_of(given):
    kind = PARTS[given["type"]]
    # The convention lets the type of a medium be left out, its class does not.
    return kind(**given)


def shown(messages):
    return [(each["role"], [part["type"] for part in each["parts"]]) for each in messages]


def load(messages):
    loaded = [types.InputMessage(each["role"], list(map(part_of, each["parts"]))) for each in messages]
    with handler.inference("openai", request_model="gpt-4.1") as invocation:
        invocation.input_messages = loaded
    (span,) = spans.get_finished_spans()
    spans.clear()
    assert shown(json.loads(span.attributes["gen_ai.input.messages"])) == shown(messages)


each_list(load)
