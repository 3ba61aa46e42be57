"""Checks before a worker joins the group; each problem is an error that states what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from aiokafka.protocol.transaction import InitProducerIdRequest

from reknit.pipeline.engine.client_requests import GroupRequest, TopicsRequest
from reknit.pipeline.engine.runtime import NotAuthorizedError, StartupError
from reknit.pipeline.errors import BrokerDownError
from reknit.pipeline.kafka import explained

if TYPE_CHECKING:
    from reknit.pipeline.engine.runtime import Runtime

_RETRY_SECONDS = 0.2
# Interval of attempts while no broker answers.
_LOOK_AGAIN_SECONDS = 1.0

# Bits of the operations that a broker allows a client (Kafka's AclOperation).
_OPERATIONS = {"Read": 1 << 3, "Write": 1 << 4}


async def check(runtime: Runtime, read: Collection[str], written: Collection[str]) -> None:
    """Check the broker, the topics (names on the broker) that this worker reads and writes, and its rights.

    The number of partitions is taken from the topics.

    Raises:
        BrokerDownError: no broker answers within ``start_seconds``, nor within ``wait_seconds`` of looking again.
        BrokerError: it does not let this worker in.
        NotAuthorizedError: rights are missing; it names all that can be checked without writing.
        StartupError: ``topics_missing``, ``partitions_mismatch``, ``transactions_unsupported`` or ``prefix_live``.
    """
    patience = time.monotonic() + runtime.tuning.wait_seconds
    while True:
        try:
            await _check(runtime, read, written)
        except BrokerDownError:
            if time.monotonic() >= patience:
                raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        else:
            return


async def _check(runtime: Runtime, read: Collection[str], written: Collection[str]) -> None:
    client = AIOKafkaClient(**runtime.connection, request_timeout_ms=5_000)
    try:
        async with asyncio.timeout(runtime.tuning.start_seconds):
            await client.bootstrap()
            if runtime.reads_another:
                await _check_not_live(client, runtime)
            topics = await _topics(client, {*read, *written})
            missing = [*_missing_on_topics(topics, read, written), *await _missing_on_group(client, runtime)]
            if missing:
                raise NotAuthorizedError(
                    "not_authorized",
                    f"missing rights: {', '.join(missing)}. `reknit topics acls` prints what is needed.",
                )
            _check_topics(runtime, topics)
            runtime.topic_ids = topic_ids(topics)
            if runtime.exactly_once:
                await _check_transactions(client, runtime.bootstrap)
    except (KafkaError, OSError, TimeoutError) as error:
        raise await explained(runtime.cluster, error) from error
    finally:
        await client.close()


async def _check_not_live(client: AIOKafkaClient, runtime: Runtime) -> None:
    """Refuse to write to the prefix of another pipeline's inputs, whose outputs and state are its own."""
    found = await _topics(client, [runtime.prefix + topic for topic in runtime.stages])
    inputs = sorted(name for name, entry in found.items() if not entry["error_code"])
    if inputs:
        raise StartupError(
            "prefix_live",
            f"a worker that reads the inputs of {runtime.source_prefix!r} must not write to {runtime.prefix!r}, which "
            f"is a live pipeline: it has inputs of its own ({', '.join(inputs)}). Give it another --prefix.",
        )


def _check_topics(runtime: Runtime, topics: Mapping[str, Mapping[str, Any]]) -> None:
    found = {name: len(entry["partitions"]) for name, entry in topics.items() if not entry["error_code"]}
    apply = runtime.command("topics apply")
    missing = sorted(topics.keys() - found.keys())
    if missing:
        raise StartupError("topics_missing", f"missing topics: {', '.join(missing)}. Run {apply}.")
    if len(set(found.values())) > 1:
        counts = ", ".join(f"{topic} has {count}" for topic, count in sorted(found.items()))
        raise StartupError(
            "partitions_mismatch",
            f"all topics must have the same number of partitions, but {counts}. `reknit topics diff` compares them; "
            f"a pipeline of its own begins with another --prefix and {apply}.",
        )
    runtime.partitions = next(iter(found.values()))


def topic_ids(topics: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the ids of the topics and the cluster, as far as the broker reports them."""
    return {
        name: f"{entry['cluster_id']} {entry['topic_id'].hex()}"
        for name, entry in topics.items()
        if "topic_id" in entry
    }


async def _topics(client: AIOKafkaClient, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
    """Return the broker's description of each topic. The request must not create missing topics."""
    while True:
        response = await client.send(client.get_random_node(), TopicsRequest(sorted(names)))
        answer = response.to_object()
        described = {entry["topic"]: entry | {"cluster_id": answer["cluster_id"]} for entry in answer["topics"]}
        errors = [for_code(entry["error_code"]) for entry in described.values()]
        # A topic that was made a moment ago may have no leader yet.
        if any(getattr(error, "retriable", False) and error.__name__.startswith("Leader") for error in errors):
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        return described


def _missing_on_topics(
    topics: Mapping[str, Mapping[str, Any]], read: Collection[str], written: Collection[str]
) -> Iterator[str]:
    for operation, needed in (("Read", read), ("Write", written)):
        for name in sorted(needed):
            entry = topics[name]
            if entry["error_code"] == TopicAuthorizationFailedError.errno or _lacks(entry, operation):
                yield f"{operation} on topic {name}"


def _lacks(entry: Mapping[str, Any], operation: str) -> bool:
    # A broker without authorized operations reports nothing, a negative number, or no operation at all.
    allowed: int = entry.get("operations", entry.get("authorized_operations", 0))
    return not entry["error_code"] and allowed > 0 and not allowed & _OPERATIONS[operation]


async def _missing_on_group(client: AIOKafkaClient, runtime: Runtime) -> list[str]:
    """Return the missing rights on the group and the transactional ids."""
    missing = []
    try:
        node = await _coordinator(client, CoordinationType.GROUP, runtime.group)
        answer = (await client.send(node, GroupRequest(runtime.group))).to_object()["groups"][0]
        if answer["error_code"] == GroupAuthorizationFailedError.errno or _lacks(answer, "Read"):
            missing.append(f"Read on group {runtime.group}")
    except GroupAuthorizationFailedError:
        missing.append(f"Read on group {runtime.group}")
    except (IncompatibleBrokerVersion, NotImplementedError):
        pass  # the broker does not report it; the group will
    if runtime.exactly_once:
        try:
            await _coordinator(client, CoordinationType.TRANSACTION, f"{runtime.group}-{next(iter(runtime.stages))}-0")
        except TransactionalIdAuthorizationFailed:
            missing.append(f"Write on transactional ids that begin with {runtime.group}-")
        except KafkaError:
            pass  # no transactions at all, which has an error of its own
    return missing


async def _coordinator(client: AIOKafkaClient, kind: int, key: str) -> int:
    while True:
        try:
            node: int = await client.coordinator_lookup(kind, key)
            if await client.ready(node):
                return node
        except KafkaError as error:
            if not error.retriable:
                raise
        await client.force_metadata_update()
        await asyncio.sleep(_RETRY_SECONDS)


async def _check_transactions(client: AIOKafkaClient, bootstrap: str) -> None:
    """Request a producer id without a transaction: cheap for the broker, and shows if it supports transactions."""
    while True:
        try:
            response = await client.send(client.get_random_node(), InitProducerIdRequest(None, 1_000))
        except IncompatibleBrokerVersion:
            break
        error = for_code(response.error_code)
        if not response.error_code:
            return
        if not getattr(error, "retriable", False):
            break
        await asyncio.sleep(_RETRY_SECONDS)
    raise StartupError(
        "transactions_unsupported",
        f"the broker at {bootstrap} has no transactions, so it cannot deliver exactly once. "
        "Use Apache Kafka, or say --delivery at-least-once: outputs may then repeat, with the same ids.",
    )
