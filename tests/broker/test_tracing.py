"""A worker exports its spans to a collector, after the commit."""

import asyncio
import json
from contextlib import asynccontextmanager

import pipeline_lab as lab
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from reknit.client import Brokers, Requests, Turns

pytestmark = pytest.mark.broker

ID, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE = {"traceparent": f"00-{ID}-{SPAN}-01"}


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self):
        self.resources, self.spans, self.arrived = [], [], asyncio.Event()

    async def take(self, request):
        given = ExportTraceServiceRequest.FromString(await request.read())
        for of_resource in given.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in of_resource.resource.attributes})
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        self.arrived.set()
        return web.Response()


@asynccontextmanager
async def collecting(collector):
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_worker_exports_the_span_of_a_turn(broker, prefix, tmp_path, free_port, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "fleet")
    collector = Collector()
    async with collecting(collector) as url:
        more = f'\n[otel]\nendpoint = "{url}"\n'
        async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port, more=more) as fleet:
            await fleet.start().ready(60)
            brokers = Brokers(bootstrap_servers=broker.bootstrap, prefix=prefix)
            async with Turns(brokers) as turns, Requests(brokers) as requests:
                await turns.open("s", model="claude-sonnet-4-5", params={"max_tokens": 100})
                blank = [{"type": "text", "text": words} for words in ("hi", " ")]
                place = await turns.append("s", {"role": "user", "content": blank}, trace=TRACE)
                request = await asyncio.wait_for(anext(aiter(requests)), 240)
                await asyncio.wait_for(collector.arrived.wait(), 240)
    assert request.trace == TRACE
    (span,) = collector.spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("process agent.turns.v1", ID, SPAN)
    found = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
    assert found["messaging.destination.name"] == f"{prefix}agent.turns.v1"
    assert found["messaging.kafka.offset"] == place.offset
    assert [event.name for event in span.events] == ["reknit.fix", "reknit.request"]
    (resource,) = collector.resources
    assert resource["service.name"] == "fleet"
    assert json.dumps(found).find('"hi"') == -1
