"""The topics of a gateway that publishes, compared with what its clients and its provider have seen.

``Topics`` reads records one by one and keeps digests, so that a run of any length can be audited. ``faults`` compares.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from itertools import chain

import harness
import pipeline_lab as lab
from aiokafka import TopicPartition
from gateway_faults import content_digest
from msgspec import Struct, field

from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics.headers import RequestHeaders, decode

AUDITED = (AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS, DEAD_LETTERS)
WHOLE, CUT, LEFT, STOPPED = "end of stream", "cut", "client left", "gateway stopped"
"""The reasons with which the run of an exchange ends."""


def settings(bootstrap, prefix):
    """Return the text of the configuration of a gateway that publishes everything."""
    return f'bootstrap_servers = "{bootstrap}"\nprefix = "{prefix}"\n[serve]\npublish = "all"\n'


def metric(page, name):
    """Return the sum of a counter over its labels; fail if the page does not have it."""
    found = [line for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)]
    assert found, f"no metric {name}"
    return sum(float(line.rpartition(" ")[2]) for line in found)


class Exchange(Struct, frozen=True, kw_only=True):
    """One exchange, as its client and its provider saw it.

    Attributes:
        session: the client's name of the conversation. Its exchanges follow each other.
        run: the id that the gateway gave it.
        ends: the reasons with which its run may end.
        digest: of the answer that the client got whole; "" if it got no whole answer.
        begun: the bytes of any other answer that the client got, perhaps with an error event of the gateway.
        sent: the bytes of any other answer that the provider sent; None if they are not known.
        status: of the answer.
        body: digest of the content of the body that the provider received; None if that is not known.
        texts: completed texts in the answer; None if that is not known.
        is_hit: the gateway was killed during the exchange. The client then got the end of the answer, or no more of it.
    """

    session: str
    run: str
    ends: frozenset[str]
    digest: str = ""
    begun: bytes = b""
    sent: bytes | None = None
    status: int = 200
    body: str | None = None
    texts: int | None = None
    is_hit: bool = False


class Run(Struct):
    """The records of one answer, repeated ones dropped. ``data`` is kept only for an answer that is not whole."""

    session: str
    seq: int = -1
    end: str | None = None
    status: int = 200
    hashed: object = field(default_factory=hashlib.sha256)
    data: bytes = b""


class Topics:
    """The records that were read.

    Attributes:
        runs: by the id of the exchange, in their order in each session.
        asked: by session, the ids of the requests in the session's log, in order, each once.
        unjudged: ids of requests in the log without a digest, which the worker compares with nothing.
        published: by session, the ids of the requests that the worker published, in order.
        bodies: digests of the contents of published requests.
        reasons: of published requests.
        texts: completed items by run.
        origins: of the turns: the writer, and whether they make a request due.
        repeated: records that are in an input topic again.
        letters: dead letters by error.
        broken: records out of order.
        positions: the next offset to read, by topic and partition.
    """

    def __init__(self, whole=frozenset()):
        """``whole``: the ids of the exchanges whose bytes are compared by digest only."""
        self.whole = whole
        self.runs = {}
        self.ended = 0
        self.asked, self.published = defaultdict(list), defaultdict(list)
        self.unjudged, self.bodies = set(), {}
        self.reasons, self.texts = Counter(), Counter()
        self.origins, self.repeated, self.letters = Counter(), Counter(), Counter()
        self.broken = []
        self.positions = defaultdict(int)
        self._ids = defaultdict(set)
        self._last = {}

    def take(self, topic, record):
        """Read one record."""
        session = record.key.decode()
        match topic:
            case str() if topic == PROVIDER_EVENTS:
                self._event(session, dict(record.headers), record.value)
            case str() if topic == AGENT_TURNS:
                self._turn(session, json.loads(record.value))
            case str() if topic == PROVIDER_REQUESTS:
                self._request(session, decode(record.headers, RequestHeaders), record.value)
            case str() if topic == SESSION_ITEMS:
                run = dict(record.headers).get("run")
                if run is not None and record.value and json.loads(record.value)["type"] == "item/completed":
                    self.texts[run.decode()] += 1
            case str() if topic == DEAD_LETTERS:
                self.letters[dict(record.headers)["reknit.error.code"].decode()] += 1

    def _event(self, session, headers, value):
        if "seq" not in headers:
            return  # the worker's own
        name, seq = headers["run"].decode(), int(headers["seq"])
        run = self.runs.setdefault(name, Run(session))
        if run.session != session:
            self.broken.append(f"{name}: in two sessions")
        if seq <= run.seq:
            # A worker ignores them, as long as no later run has begun.
            self.repeated[PROVIDER_EVENTS] += 1
            if self._last[session] != name:
                self.broken.append(f"{name}: record {seq} again after a later exchange of its session")
            return
        before = self.runs.get(self._last.get(session))
        if before is not None and before is not run and before.end is None:
            self.broken.append(f"{name}: begins before the exchange before it has ended")
        if seq != run.seq + 1 or run.end is not None:
            self.broken.append(f"{name}: record {seq} after {run.seq}, end {run.end}")
        self._last[session], run.seq = name, seq
        if value is None:
            run.end = headers["exit"].decode()
            self.ended += 1
            return
        run.status = int(headers.get("status", b"200"))
        run.hashed.update(value)
        if name not in self.whole:
            run.data += value

    def _turn(self, session, turn):
        if turn.get("id") in self._ids[session]:
            self.repeated[AGENT_TURNS] += 1
            return
        self._ids[session].add(turn.get("id"))
        if turn["type"] == "turn.appended":
            self.origins[turn.get("origin"), turn.get("request")] += 1
        if turn["type"] == "request.sent":
            self.asked[session].append(turn["request_id"])
            if "content_sha256" not in turn:
                self.unjudged.add(turn["request_id"])

    def _request(self, session, headers, body):
        self.published[session].append(headers.request_id)
        self.reasons[headers.reason] += 1
        self.bodies[headers.request_id] = content_digest(body)


async def read(topics, bootstrap, prefix, *names):
    """Read all records of topics that are there now and were not read yet."""
    for name in names:
        async with _reader(topics, bootstrap, prefix, name) as reader:
            ends = await reader.end_offsets(reader.assignment())
            while not all([await reader.position(place) >= ends[place] for place in ends]):
                await _take(topics, name, reader)


async def read_events(topics, bootstrap, prefix, are_enough, seconds=60):
    """Read answers until a condition holds; return whether it does.

    It does not if no record comes for ``seconds``.
    """
    async with _reader(topics, bootstrap, prefix, PROVIDER_EVENTS) as reader:
        deadline = harness.deadline_after(seconds)
        while not are_enough(topics):
            if await _take(topics, PROVIDER_EVENTS, reader):
                deadline = harness.deadline_after(seconds)
            if time.monotonic() > deadline:
                return False
    return True


@asynccontextmanager
async def _reader(topics, bootstrap, prefix, name):
    places = [TopicPartition(prefix + name, number) for number in range(lab.PARTITIONS)]
    async with harness.reader(bootstrap) as reader:
        reader.assign(places)
        for place in places:
            reader.seek(place, topics.positions[name, place.partition])
        yield reader


async def _take(topics, name, reader):
    found = await reader.getmany(timeout_ms=200)
    for records in found.values():
        for record in records:
            topics.take(name, record)
            topics.positions[name, record.partition] = record.offset + 1
    return bool(found)


def faults(topics, exchanges):
    """Return what is wrong with the topics, in words; nothing if each exchange is there once and in order."""
    found = [*topics.broken]
    known = {each.run: each for each in exchanges}
    for exchange in exchanges:
        found += [f"{exchange.run}: {words}" for words in _faults_of(exchange, topics)]
    found += _order(topics, exchanges)
    # A client whose gateway was killed before its answer began sent its request again.
    hits = sum(each.is_hit for each in exchanges)
    for place, runs in (
        ("answers", topics.runs),
        ("requests in the log", chain.from_iterable(topics.asked.values())),
        ("published requests", chain.from_iterable(topics.published.values())),
    ):
        unknown = [run for run in runs if run not in known]
        if len(unknown) > hits:
            found.append(f"{len(unknown)} {place} of no client, although only {hits} were hit by a kill")
    if set(topics.reasons) - {"sent"}:
        found.append(f"requests are published for other reasons: {dict(topics.reasons)}")
    if set(topics.origins) - {("gateway", False)}:
        found.append(f"turns of others, or that make a request due: {dict(topics.origins)}")
    if topics.letters:
        found.append(f"dead letters: {dict(topics.letters)}")
    return found


def _faults_of(exchange, topics):
    """Yield what is wrong with the records of one exchange."""
    run = topics.runs.get(exchange.run)
    if run is None:
        # The journal had nothing of it yet, and the client got no whole answer.
        if exchange.digest or not exchange.is_hit:
            part = "the whole" if exchange.digest else "a part"
            yield f"no answer in the topics; its client got {part} of it, and its end can be {sorted(exchange.ends)}"
        return
    if run.end not in exchange.ends:
        yield f"its answer ends with {run.end!r} instead of {sorted(exchange.ends)}"
    if exchange.digest and run.hashed.hexdigest() != exchange.digest:
        yield "its answer is not the one that the client got"
    if not exchange.digest and not (run.data.startswith(exchange.begun) or exchange.begun.startswith(run.data)):
        yield "its answer does not begin as the client's"
    if exchange.sent is not None and not exchange.digest and not exchange.sent.startswith(run.data):
        yield "its answer does not begin as the provider's"
    if run.data and run.status != exchange.status and max(run.status, exchange.status) >= 400:
        yield f"its answer has status {run.status} instead of {exchange.status}"
    if exchange.texts is not None and topics.texts[exchange.run] != exchange.texts:
        yield f"{topics.texts[exchange.run]} completed texts instead of {exchange.texts}"
    if exchange.run not in topics.unjudged and _is_another_body(exchange, topics):
        yield "the published request is not the one that the provider received"


def unequal(topics, exchanges):
    """Return how many published requests differ from the ones that were sent, and carried no digest of them."""
    return sum(each.run in topics.unjudged and _is_another_body(each, topics) for each in exchanges)


def _is_another_body(exchange, topics):
    return exchange.body is not None and topics.bodies.get(exchange.run, exchange.body) != exchange.body


def _order(topics, exchanges):
    """Yield where exchanges are missing, there again, or in another order than the client's."""
    expected, keys = defaultdict(list), {}
    for exchange in exchanges:
        expected[exchange.session].append(exchange)
        if exchange.run in topics.runs:
            keys.setdefault(exchange.session, topics.runs[exchange.run].session)
    seen = defaultdict(list)
    for name, run in topics.runs.items():
        seen[run.session].append(name)
    if len(set(keys.values())) != len(keys):
        yield "conversations share a session"
    for place, by_session in (("answers", seen), ("log", topics.asked), ("published requests", topics.published)):
        for session, asked in expected.items():
            known = {each.run for each in asked}
            found = [run for run in by_session.get(keys.get(session), ()) if run in known]
            wanted = [each.run for each in asked if not (each.is_hit and not each.digest) or each.run in found]
            if found != wanted:
                lost, again = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
                words = f"lost {[*lost]}, again {[*again]}" if lost or again else "in another order"
                yield f"{session}, {place}: {words}"
