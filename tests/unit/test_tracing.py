"""Spans in OpenTelemetry's in-memory exporter: of a worker's records, and of calls of the sender and the gateway."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading

import aiohttp
import pytest
from aiohttp import web
from anthropic_events import block, start
from build import user
from gateway import gateway, streamed
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sender_runs import anthropic, request, sending, until
from stage_runs import KEY, OPENED, records, turn

from reknit.pipeline import __version__
from reknit.pipeline.client.answers import AnswerFacts
from reknit.pipeline.client.sender import TryAgainError
from reknit.pipeline.errors import InputError
from reknit.pipeline.serve.upstreams import Upstream
from reknit.pipeline.settings import OtelSettings
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.tracing.calls import Outcome, Tracing
from reknit.pipeline.tracing.exporting import Background, OtelTracing, exporting_to
from reknit.pipeline.tracing.opening import open_tracing
from reknit.pipeline.tracing.spans import error_of, outcome_attributes, provider_of, spans_of
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS
from reknit.topics.items import Usage
from reknit.topics.trace import trace_id

ID = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{ID}-{SPAN}-01"
TRACE = (("traceparent", PARENT.encode()), ("tracestate", b"a=1"))
# Words of a conversation that no span may have.
SECRET = "the moon is made of cheese"  # noqa: S105  words of a conversation


class Spans:
    """A tracing whose spans stay in memory."""

    def __init__(self, prefix=""):
        self.exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = OtelTracing(provider, prefix)

    @property
    def all(self):
        return self.exporter.get_finished_spans()

    def text(self):
        return " ".join(span.to_json() for span in self.all)


def is_child(span):
    return (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (ID, SPAN)


# A worker.


def written(stage, log, prefix="", spans=None):
    spans = spans or Spans(prefix)
    spans.tracing.on_written(stage.topic, 2, stage.process(log).outputs, 0.25)
    spans.tracing.close()
    return spans


def test_a_turn_has_a_span_with_its_requests_and_fixes():
    log = [
        *records([{**OPENED, "targets": ["anthropic", "gemini"]}]),
        *records([turn(user(SECRET, " "))], TRACE, first=1),
    ]
    (span,) = written(TurnsStage(), log, "p.").all
    assert (span.name, span.kind, is_child(span)) == ("process agent.turns.v1", SpanKind.CONSUMER, True)
    assert span.end_time - span.start_time == 250_000_000
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "p.agent.turns.v1",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 1,
        "gen_ai.conversation.id": KEY.decode(),
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "claude-sonnet-4-5",
    }
    requests = [event.attributes for event in span.events if event.name == "reknit.request"]
    assert [
        (each["reknit.target"], each["gen_ai.provider.name"], each["reknit.request.fixes"]) for each in requests
    ] == [
        ("anthropic", "anthropic", 1),
        ("gemini", "gcp.gemini", 1),
    ]
    fixes = [dict(event.attributes) for event in span.events if event.name == "reknit.fix"]
    assert fixes
    assert fixes[0].keys() == {
        *("reknit.fix.code", "reknit.fix.place", "reknit.fix.lossy", "reknit.fix.observed", "reknit.target")
    }
    assert fixes[0]["reknit.fix.place"].startswith("messages.0")
    assert span.status.status_code is StatusCode.UNSET


def test_each_record_of_turns_has_its_own_span_and_one_without_outputs_has_none():
    other = (("traceparent", f"00-{'1' * 32}-{SPAN}-01".encode()),)
    log = [*records([OPENED]), *records([turn(user("a"))], TRACE, first=1)]
    log += [
        *records([turn({"role": "assistant", "content": "b"})], first=2),
        *records([turn(user("c"))], other, first=3),
    ]
    found = written(TurnsStage(), log).all
    assert [(span.attributes["messaging.kafka.offset"], f"{span.context.trace_id:032x}") for span in found] == [
        (1, ID),
        (3, "1" * 32),
    ]


def test_a_record_without_a_trace_begins_one():
    (span,) = written(TurnsStage(), records([OPENED, turn(user("a"))], (("traceparent", b"\xff"),))).all
    assert (span.parent, span.context.trace_id != int(ID, 16)) == (None, True)


def test_an_unsampled_trace_is_not_exported():
    trace = (("traceparent", PARENT[:-1].encode() + b"0"),)
    assert written(TurnsStage(), records([OPENED, turn(user("a"))], trace)).all == ()


def test_a_dead_letter_is_an_error_with_its_code_alone():
    log = records([OPENED, {"type": "turn.appended", "message": {"role": SECRET}}, SECRET.encode()], TRACE)
    spans = written(TurnsStage(), log)
    assert [span.attributes["error.type"] for span in spans.all] == ["unknown_role", "not_json"]
    assert {span.status.status_code for span in spans.all} == {StatusCode.ERROR}
    assert [dict(event.attributes) for span in spans.all for event in span.events] == [
        {"error.type": "unknown_role"},
        {"error.type": "not_json"},
    ]
    assert SECRET not in spans.text()


def test_a_rejected_request_names_the_rule():
    tool = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
    (span,) = written(TurnsStage(), records([{"type": "session.opened"}, turn(user("x")), turn(tool)], TRACE)).all[:1]
    (event,) = span.events
    assert (event.name, event.attributes["error.type"]) == ("reknit.dead_letter", "rejected")
    assert event.attributes["reknit.rule"].startswith("ANT-")


def test_the_events_of_a_session_and_a_trace_share_a_span_per_batch():
    pieces = [b"data: %b\n\n" % json.dumps(each).encode() for each in (start("m"), block(0, "text", text=SECRET))]
    headers = (("source", b"anthropic"), ("run", b"r"), ("request-id", b"q"), *TRACE)
    other = records(pieces, (("source", b"anthropic"), ("run", b"r")), key=b"other")
    stage = EventsStage()
    spans = written(stage, [*records(pieces, headers), *other])
    assert [(span.name, span.attributes["gen_ai.conversation.id"], span.parent is not None) for span in spans.all] == [
        ("process provider.events.v1", KEY.decode(), True),
        ("process provider.events.v1", "other", False),
    ]
    assert spans.all[0].attributes["reknit.items"] >= 2
    assert SECRET not in spans.text()


def test_what_one_side_writes_to_the_other_is_in_no_span():
    assert spans_of(AGENT_TURNS, 0, TurnsStage().process(records([OPENED])).outputs) == []
    outputs = EventsStage().process(
        records([b"{"], (("source", b"anthropic"), ("status", b"400"), ("request-id", b"q")))
    )
    (span,) = spans_of(PROVIDER_EVENTS, 0, outputs.outputs)
    assert span.attributes["reknit.turns.recorded"] == 1


# `reknit send`.


async def test_a_call_has_a_span_below_the_trace_of_its_request():
    spans = Spans()
    async with sending(anthropic(text=SECRET), tracing=spans.tracing) as sent:
        sent.requests.put(request("r1", "session 1", offset=0, raw_headers=TRACE, body=SECRET.encode()))
        await sent.events.next_end()
        await until(lambda: spans.all)
    (span,) = spans.all
    assert (span.name, span.kind, is_child(span)) == ("chat m", SpanKind.CLIENT, True)
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "m",
        "gen_ai.conversation.id": "session 1",
        "server.address": "api.example.com",
        "server.port": 443,
        "http.response.status_code": 200,
        "gen_ai.response.id": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 0,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 0,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert not {SECRET, "secret"} & set(spans.text().split())
    # The provider's parent is the span. Records have the trace of the request itself.
    assert sent.events.traces == [{"traceparent": PARENT, "tracestate": "a=1"}] * len(sent.events.traces)
    assert sent.route.traces == [
        {"traceparent": f"00-{ID}-{span.context.span_id:016x}-01", "tracestate": "a=1"},
    ]


async def test_each_attempt_has_a_span_with_its_error():
    spans, refusal = Spans(), TryAgainError("HTTP 529")
    answers = ([refusal], [TimeoutError(SECRET)], [*anthropic(end=False)[:1], ConnectionResetError(SECRET)])
    async with sending(*answers, tracing=spans.tracing) as sent:
        sent.requests.put(request("r1", offset=0, raw_headers=TRACE))
        await sent.events.next_end()
        await until(lambda: len(spans.all) == 3)
    assert [span.attributes["error.type"] for span in spans.all] == ["529", "TimeoutError", "ConnectionResetError"]
    assert {span.status.status_code for span in spans.all} == {StatusCode.ERROR}
    assert all(map(is_child, spans.all))
    assert SECRET not in spans.text()


async def test_a_call_that_is_broken_off_ends():
    spans = Spans()
    async with sending([anthropic()[0], asyncio.Event()], default=anthropic(), tracing=spans.tracing) as sent:
        sent.requests.put(request("r1", offset=0))
        await sent.route.arrived.acquire()
        sent.requests.put(request("r2", offset=1, supersedes="r1"))
        assert [(await sent.events.next_end())[1:] for _ in range(2)] == [("r1", "superseded"), ("r2", "end of stream")]
        await until(lambda: len(spans.all) == 2)
    assert [span.attributes.get("error.type") for span in spans.all] == ["CancelledError", None]


# `reknit serve`.


async def posted(client, url, data, **headers):
    async with client.post(f"{url}/v1/messages", data=data, headers=headers) as response:
        return response.status, await response.read()


BODY = json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": SECRET}]})
BROKEN = json.dumps(
    {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in (SECRET, " ")]}],
    }
)


async def test_a_request_through_the_gateway_has_a_span_with_status_usage_and_fixes():
    spans = Spans()
    answer = streamed(anthropic(text=SECRET))
    async with gateway(answer, tracing=spans.tracing) as (provider, url, client):
        assert (await posted(client, url, BROKEN.encode(), traceparent=PARENT, tracestate="a=1"))[0] == 200
        await until(lambda: spans.all)
    (span,) = spans.all
    (received,) = provider.received
    assert (span.name, span.kind, is_child(span)) == ("chat claude-sonnet-4-5", SpanKind.CLIENT, True)
    shown = dict(span.attributes)
    assert shown.pop("server.port")
    assert shown == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-sonnet-4-5",
        "server.address": "127.0.0.1",
        "http.response.status_code": 200,
        "gen_ai.response.id": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 0,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 0,
    }
    assert [(event.name, *event.attributes.values()) for event in span.events] == [
        ("reknit.fix", "blank_dropped", 1),
    ]
    passed = f"00-{ID}-{span.context.span_id:016x}-01"
    assert (received.headers["traceparent"], received.headers["tracestate"]) == (passed, "a=1")
    assert SECRET not in spans.text()


async def test_without_tracing_the_gateway_passes_the_headers_on_unchanged():
    async with gateway() as (provider, url, client):
        await posted(client, url, BODY.encode(), traceparent="anything", tracestate="a=1")
    (received,) = provider.received
    assert (received.headers["traceparent"], received.headers["tracestate"]) == ("anything", "a=1")


async def test_a_cut_answer_is_an_error():
    spans = Spans()
    async with gateway(streamed(anthropic(end=False)), tracing=spans.tracing) as (_, url, client):
        with pytest.raises(aiohttp.ClientError):
            await posted(client, url, BODY.encode(), traceparent=PARENT)
        await until(lambda: spans.all)
    (span,) = spans.all
    assert (span.attributes["error.type"], span.status.status_code) == ("cut", StatusCode.ERROR)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_an_answer_that_is_one_document_has_its_usage(encoding):
    spans = Spans()
    document = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    document |= {"content": [{"type": "text", "text": SECRET}], "usage": {"input_tokens": 3, "output_tokens": 4}}
    text = json.dumps(document).encode()

    async def answer(_request):
        data = gzip.compress(text) if encoding == "gzip" else text
        return web.Response(body=data, headers={"content-type": "application/json", "content-encoding": encoding})

    async with gateway(answer, tracing=spans.tracing) as (_, url, client):
        status, data = await posted(client, url, BODY.encode())
        await until(lambda: spans.all)
    (span,) = spans.all
    assert (status, gzip.decompress(data) if encoding == "gzip" else data) == (200, text)
    usage = [span.attributes[f"gen_ai.usage.{name}_tokens"] for name in ("input", "output")]
    assert (usage, span.attributes["gen_ai.response.finish_reasons"], span.parent) == ([3, 4], ("end_turn",), None)
    assert SECRET not in spans.text()


async def test_a_refusal_and_a_request_that_goes_nowhere_are_errors():
    spans = Spans()

    async def refuse(_request):
        return web.json_response({"error": {"message": SECRET}}, status=529)

    async with gateway(refuse, tracing=spans.tracing) as (provider, url, client):
        assert (await posted(client, url, BODY.encode()))[0] == 529
        async with client.get(f"{url}/v1/models") as response:
            assert response.status == 529
    async with gateway(upstreams=[Upstream(name="none", to="http://127.0.0.1:9")], tracing=spans.tracing) as (
        _,
        url,
        client,
    ):
        assert (await posted(client, url, BODY.encode()))[0] == 502
    assert len(provider.received) == 2
    assert [span.attributes["error.type"] for span in spans.all] == ["529", "502"]
    assert SECRET not in spans.text()


# Attributes.


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome(), ""),
        (Outcome(status=200), ""),
        (Outcome(status=404), "404"),
        (Outcome(status=200, error="overloaded_error"), "overloaded_error"),
    ],
)
def test_the_error_of_a_call(outcome, error):
    assert (error_of(outcome), outcome_attributes(outcome).get("error.type", "")) == (error, error)


def test_cached_tokens_are_part_of_the_input():
    usage = Usage(input_tokens=1, output_tokens=2, cache_creation_input_tokens=10, cache_read_input_tokens=100)
    found = outcome_attributes(Outcome(answer=AnswerFacts(usage=usage)))
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (111, 2)
    assert [provider_of(name) for name in ("openai-responses", "bedrock-converse", "vllm")] == [
        *("openai", "aws.bedrock", "vllm")
    ]


# Opening.


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "TRUE"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_traced_unless_it_is_configured(env):
    assert type(open_tracing(OtelSettings(), env=env)) is Tracing


@pytest.mark.parametrize(
    "env", [{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}]
)
def test_without_the_extra_a_setting_is_an_error_and_a_variable_a_line(env, monkeypatch, caplog):
    monkeypatch.setattr("reknit.pipeline.tracing.opening.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install 'reknit\[otel\]'") as caught:
        open_tracing(OtelSettings(endpoint="http://x"), env={})
    assert (caught.value.code, caught.value.path) == ("otel_missing", "otel.endpoint")
    assert type(open_tracing(OtelSettings(), env=env)) is Tracing
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("OpenTelemetry is configured by the environment")
    assert line.endswith("pip install 'reknit[otel]'")


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.tracing.exporting._CLOSE_SECONDS", 0.01)
    answers, closing = threading.Event(), threading.Event()

    class Slow:
        def get_tracer(self, *_):
            return None

        def shutdown(self):
            closing.set()
            answers.wait()

    OtelTracing(Slow()).close()
    assert closing.is_set()
    assert not answers.is_set()
    answers.set()


def test_a_few_batches_may_wait_and_more_are_dropped(caplog):
    background, begun, may_go, done = Background(), threading.Event(), threading.Event(), []

    def wait():
        begun.set()
        may_go.wait()

    background.run(wait)
    begun.wait()
    for number in range(20):
        background.run(lambda number=number: done.append(number))
    may_go.set()
    background.close()
    assert done == list(range(7))
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["spans are dropped"]


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "reknit"),
        ({"OTEL_SERVICE_NAME": "fleet"}, "fleet"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=crew,team=a"}, "crew"),
    ],
)
def test_variables_of_opentelemetry_name_the_service(variables, name, monkeypatch):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    tracing = exporting_to("http://127.0.0.1:9")
    tracing.close()
    assert tracing.resource["service.name"] == name
    assert tracing.resource["service.version"] == __version__


def test_an_unconfigured_program_does_not_import_the_sdk():
    script = (
        "import sys, reknit.pipeline.tracing.opening as tracing, reknit.pipeline.settings as settings;"
        "tracing.open_tracing(settings.OtelSettings(), env={});"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=120)
    assert done.stdout.strip() == b"[]"


def test_the_ids_of_a_carrier_and_of_a_record_agree():
    assert trace_id(TRACE) == ID
