"""Brokers in this process for a gateway that publishes, and a worker's stages that read what it wrote."""

import asyncio
import json
from contextlib import asynccontextmanager

from reknit.pipeline.errors import BrokerDownError
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics import headers as names
from reknit.topics.headers import RequestHeaders


class InputBrokers:
    """Takes records. While it is down, it accepts no connection and acknowledges no record."""

    def __init__(self):
        self.records = []
        self._changed = asyncio.Event()
        self.is_down = False
        self.loses_acknowledgements = 0

    @asynccontextmanager
    async def connect(self):
        self._check()
        yield self

    async def send(self, topic, session, value, headers=()):
        self._check()
        self.records.append((topic, session, value, headers))
        self._changed.set()
        return asyncio.get_running_loop().create_future()

    async def delivered(self, sent):
        self._check()
        if self.loses_acknowledgements:
            self.loses_acknowledgements -= 1
            raise BrokerDownError("broker_down", "no acknowledgement")

    def _check(self):
        if self.is_down:
            raise BrokerDownError("broker_down", "no broker answers")

    def of(self, topic):
        return [each for each in self.records if each[0] == topic]

    @property
    def turns(self):
        return [json.loads(value) for _, _, value, _ in self.of(AGENT_TURNS)]

    @property
    def types(self):
        return [each["type"] for each in self.turns]

    def runs(self):
        """The bytes and the reason of the end of each run, in the order of their ends."""
        data, ended = {}, []
        for _, session, value, headers in self.of(PROVIDER_EVENTS):
            run = session, dict(headers)["run"].decode()
            if value is None:
                ended.append((session, data.get(run, b""), dict(headers)["exit"].decode()))
            else:
                data[run] = data.get(run, b"") + value
        return ended

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def ends(self, count):
        """Wait until `count` runs have ended."""
        await self.until(lambda brokers: len(brokers.runs()) >= count)


class Worker:
    """The outputs of a worker that reads the records."""

    def __init__(self, brokers, **defaults):
        defaults = Defaults(**defaults)
        self.turns = TurnsStage(defaults).process(_records(brokers.of(AGENT_TURNS)))
        self.events = EventsStage(defaults).process(_records(brokers.of(PROVIDER_EVENTS)))

    @property
    def requests(self):
        found = [each for each in self.turns.outputs if each.topic == PROVIDER_REQUESTS]
        return [(names.decode(each.headers, RequestHeaders), each.value) for each in found]

    @property
    def fixes(self):
        return [json.loads(each.value)["code"] for each in self.turns.outputs if each.topic == HISTORY_FIXES]

    @property
    def items(self):
        return [json.loads(each.value) for each in self.events.outputs if each.topic == SESSION_ITEMS]

    @property
    def mismatches(self):
        return sum(count for key, count in self.turns.tally.items() if key[0] == "reknit_gateway_mismatch_total")

    @property
    def letters(self):
        return [
            dict(each.headers)["reknit.error.code"].decode()
            for each in (*self.turns.outputs, *self.events.outputs)
            if each.topic == "pipeline.dead-letters.v1"
        ]


def _records(written):
    return [
        Record(partition=0, offset=at, key=session.encode(), value=value, headers=headers)
        for at, (_, session, value, headers) in enumerate(written)
    ]
