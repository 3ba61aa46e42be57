"""Typed producers of the inputs, and consumers of the outputs, for programs on asyncio (``reknit.client``).

The usual mistakes of custom clients are avoided: records are keyed by the session and partitioned by murmur2, inputs
are idempotent, acknowledged by all replicas and compressed with zstd, outputs are read only once they are committed,
and every turn has an id, so sending it again changes nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, Self, TypeAlias

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka import Cluster, KafkaSettings
from reknit.pipeline.kafka.sending import acknowledged, hand_over, open_producer
from reknit.pipeline.objects import HasObjects, ObjectSettings, open_objects
from reknit.topics import AGENT_TURNS, LARGEST_INPUT, PROVIDER_EVENTS, qualified
from reknit.topics import headers as names
from reknit.topics.headers import Framing, Headers
from reknit.topics.records import (
    HistoryRestored,
    HistoryRewound,
    PolicyChange,
    RequestWanted,
    SessionClosed,
    SessionOpened,
    TurnAppended,
    TurnRecord,
)
from reknit.topics.trace import trace_headers

Json: TypeAlias = Mapping[str, Any] | bytes | Raw
# The headers of W3C Trace Context, as OpenTelemetry's ``propagate.inject`` writes them into a carrier.
Trace: TypeAlias = Mapping[str, str]


class Pipeline(Cluster, HasObjects, Protocol):
    """The location of a pipeline: its brokers, its prefix, its objects."""


class Brokers(Struct, frozen=True, kw_only=True):
    """The location of the pipeline. A worker's configuration (``reknit.pipeline.config.load_config``) can be used."""

    bootstrap_servers: str = "localhost:9092"
    prefix: str = ""
    kafka: KafkaSettings = KafkaSettings()
    objects: ObjectSettings = ObjectSettings()


class Place(Struct, frozen=True):
    """A record's place; ``topic`` is the contract's name, without prefix. As text it reads as headers name it."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class _Writer:
    """One idempotent producer."""

    def __init__(self, brokers: Pipeline, *, producer: str | None = None) -> None:
        self._brokers = brokers
        self._prefix = brokers.prefix
        self._objects = open_objects(brokers)
        self._headers: Headers = () if producer is None else ((names.PRODUCER, producer.encode()),)
        self._client: AIOKafkaProducer | None = None

    async def __aenter__(self) -> Self:
        self._client = await open_producer(self._brokers, enable_idempotence=True, compression_type="zstd")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.stop()

    async def _hand_over(
        self, topic: str, session: str, value: bytes | None, headers: Headers = ()
    ) -> asyncio.Future[Any]:
        """Hand over a record; the future is done once the brokers have it."""
        if self._client is None:
            raise RuntimeError("use `async with`: the producer is not started")
        if not session:
            raise InputError("no_key", "a session's id is not empty")
        for name, content in (*headers, *self._headers):
            if fault := names.fault_of(content):  # the worker would refuse the record, or drop the header
                raise InputError("bad_header", f"header `{name}` {fault}")
        if value is not None and self._objects is not None and len(value) >= self._objects.threshold_bytes:
            dataref = await self._objects.put(session.encode(), value)
            value, headers = None, (*headers, (names.DATAREF, dataref.encode()))
        name = qualified(topic, self._prefix)
        try:
            return await hand_over(
                self._brokers, self._client, name, value, key=session.encode(), headers=(*headers, *self._headers)
            )
        except MessageSizeTooLargeError as error:
            raise InputError("too_large", f"a record holds at most {LARGEST_INPUT} bytes") from error

    async def _delivered(self, topic: str, sent: asyncio.Future[Any]) -> Place:
        found = await acknowledged(self._brokers, sent)
        return Place(topic, found.partition, found.offset)


class Turns(_Writer):
    """Writes ``agent.turns``. Each call returns the record's place once the brokers have it.

    ``trace`` is a carrier with ``traceparent`` and ``tracestate``, as OpenTelemetry's ``propagate.inject`` fills it.
    Requests, fixes and dead letters that the record leads to have the same. Other members and invalid values are
    ignored.

    Args:
        brokers: where the pipeline is.
        producer: the program's name and version (``crew/1.4``), which each fix of its turns names.

    Raises:
        BrokerDownError: no broker answered in time; it is not known whether the record arrived, so send it again under
            the same ``record_id``.
        BrokerError: the cluster refuses.
    """

    async def open(
        self,
        session: str,
        *,
        targets: Iterable[str] | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        system: Any = UNSET,  # noqa: ANN401  text or blocks
        tools: Any = UNSET,  # noqa: ANN401  tools of any provider
        params: Mapping[str, Any] | UnsetType | None = UNSET,
        policy: PolicyChange | UnsetType | None = UNSET,
        trace: Trace | None = None,
    ) -> Place:
        """Set the properties of the session's requests; None restores the worker's default."""
        record = SessionOpened(
            targets=tuple(targets) if isinstance(targets, Iterable) else targets,
            model=model,
            system=system if system is UNSET else _raw(system),
            tools=tools if tools is UNSET else _raw(tools),
            params={name: _raw(value) for name, value in params.items()} if isinstance(params, Mapping) else params,
            policy=policy,
        )
        return await self.write(session, record, trace=trace)

    async def append(
        self,
        session: str,
        message: Json,
        *,
        record_id: str | None = None,
        request: bool = True,
        shape: str | None = None,
        trace: Trace | None = None,
    ) -> Place:
        """Append a message, in any shape that Reknit reads; an id is made where none is given.

        With ``request`` false it makes no request due. Use it for a log that mirrors another program's conversation.
        ``shape`` names the message's shape, where it should not be detected.
        """
        record = TurnAppended(
            message=_raw(message),
            id=record_id or _new_id(),
            request=request,
            shape=UNSET if shape is None else shape,
        )
        return await self.write(session, record, trace=trace)

    async def restore(
        self,
        session: str,
        messages: Iterable[Json] | bytes,
        *,
        record_id: str | None = None,
        trace: Trace | None = None,
    ) -> Place:
        """Replace the history; this triggers no request."""
        listed = messages if isinstance(messages, bytes) else [_raw(message) for message in messages]
        record = HistoryRestored(messages=_raw(listed), id=record_id or _new_id())
        return await self.write(session, record, trace=trace)

    async def rewind(
        self, session: str, to: str | int, *, record_id: str | None = None, trace: Trace | None = None
    ) -> Place:
        """Take turns back from the end: ``to`` is the id of the turn that becomes the last, or how many stay."""
        return await self.write(session, HistoryRewound(to=to, id=record_id or _new_id()), trace=trace)

    async def want_request(self, session: str, *, record_id: str | None = None, trace: Trace | None = None) -> Place:
        """Ask for a request now, whether or not the history has changed."""
        return await self.write(session, RequestWanted(id=record_id or _new_id()), trace=trace)

    async def close(self, session: str, *, trace: Trace | None = None) -> Place:
        """Nothing more will come; the session's state may go."""
        return await self.write(session, SessionClosed(), trace=trace)

    async def write(self, session: str, record: TurnRecord, *, trace: Trace | None = None) -> Place:
        """Write any record of the topic."""
        sent = await self._hand_over(AGENT_TURNS, session, msgspec.json.encode(record), trace_headers(trace))
        return await self._delivered(AGENT_TURNS, sent)


class Events(_Writer):
    """Writes ``provider.events``: a provider's bytes unchanged.

    ``feed`` returns as soon as the record is on its way, so that a stream is not delayed; ``end_run`` returns once the
    brokers have all of it. If a record was not delivered, the next call raises.

    Items have the ``trace`` of their events; it is that of the request (``Request.trace``), or a carrier as for
    ``Turns``.
    """

    def __init__(self, brokers: Pipeline, source: str, *, producer: str | None = None) -> None:
        super().__init__(brokers, producer=producer)
        self.source = source
        self._sent: dict[str, list[asyncio.Future[Any]]] = {}

    async def feed(
        self,
        session: str,
        data: bytes,
        *,
        run: str,
        framing: Framing = "events",
        request_id: str | None = None,
        status: int | None = None,
        transcript_expected: bool = False,
        trace: Trace | None = None,
    ) -> None:
        """Pass on output of a source: whole events, or with ``framing`` bytes any piece of the stream.

        Args:
            session: the session of the events.
            data: the bytes as received.
            run: one start of a program or one stream of an API; a new one ends the former.
            framing: whether ``data`` has whole events, or may end inside of one.
            request_id: the published request that this answers.
            status: the HTTP status of that answer.
            transcript_expected: turns wait for the program's own transcript of the run, which is fed as a source of its
                own.
            trace: the trace that the answer belongs to.
        """
        described = names.EventHeaders(
            source=self.source,
            run=run,
            framing=framing,
            transcript="expected" if transcript_expected else UNSET,
            request_id=UNSET if request_id is None else request_id,
            status=UNSET if status is None else status,
        )
        await self._send(session, data, (*names.encode(described), *trace_headers(trace)))

    async def flush(self) -> None:
        """Wait until the brokers have acknowledged all records. The next call for a session raises its failures."""
        if self._client is not None:
            await self._client.flush()

    async def end_run(
        self, session: str, *, run: str, reason: str = "end of stream", trace: Trace | None = None
    ) -> None:
        """End a run: its open items are completed as incomplete, for this reason."""
        described = names.encode(names.EndOfRunHeaders(exit=reason, source=self.source, run=run))
        await self._send(session, None, (*described, *trace_headers(trace)))
        for each in self._sent.pop(session):
            await self._delivered(PROVIDER_EVENTS, each)

    async def _send(self, session: str, value: bytes | None, headers: Headers) -> None:
        sent = self._sent.setdefault(session, [])
        while sent and sent[0].done():
            await self._delivered(PROVIDER_EVENTS, sent.pop(0))
        sent.append(await self._hand_over(PROVIDER_EVENTS, session, value, headers))


class Inputs(_Writer):
    """Writes records of both inputs that a program has made before, with all of their headers."""

    async def send(self, topic: str, session: str, value: bytes | None, headers: Headers = ()) -> asyncio.Future[Any]:
        """Hand over a record; ``delivered`` waits until the brokers have it.

        Raises:
            InputError: the record cannot be written.
            BrokerError: no broker answers, or it refuses.
        """
        return await self._hand_over(topic, session, value, headers)

    async def delivered(self, sent: Iterable[asyncio.Future[Any]]) -> None:
        """Wait until the brokers have records.

        Raises:
            BrokerError: they do not have all of them.
        """
        for each in sent:
            await acknowledged(self._brokers, each)


def _raw(value: Any) -> Raw:  # noqa: ANN401  anything that JSON can hold, or JSON
    return value if isinstance(value, Raw) else Raw(value if isinstance(value, bytes) else msgspec.json.encode(value))


def _new_id() -> str:
    return uuid.uuid4().hex
