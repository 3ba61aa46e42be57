"""What is looked at before a worker joins the group: each problem is an error that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from pipeline.engine.errors import StartupError
from pipeline.kafka import explained

if TYPE_CHECKING:
    from pipeline.engine.runtime import Runtime

_RETRY_SECONDS = 0.2


async def check(runtime: Runtime, topics: Collection[str]) -> None:
    """Look at the broker and at the topics (contract names) that this worker reads and writes.

    Raises:
        BrokerError: no broker answers within ``start_seconds``, or it does not let this worker in.
        StartupError: ``topics_missing``, ``partitions_mismatch`` or ``transactions_unsupported``.
    """
    client = AIOKafkaClient(**runtime.connection, request_timeout_ms=5_000)
    try:
        async with asyncio.timeout(runtime.tuning.start_seconds):
            await client.bootstrap()
            await _check_topics(client, runtime, topics)
            if runtime.exactly_once:
                await _check_transactions(client, runtime.bootstrap)
    except (KafkaError, OSError, TimeoutError) as error:
        raise await explained(runtime.cluster, error) from error
    finally:
        await client.close()


async def _check_topics(client: AIOKafkaClient, runtime: Runtime, topics: Collection[str]) -> None:
    wanted = {runtime.prefix + topic for topic in topics}
    found = await _partition_counts(client, wanted)
    apply = f"`reknit topics apply --bootstrap-servers {runtime.bootstrap}"
    apply += f" --prefix {runtime.prefix}`" if runtime.prefix else "`"
    missing = sorted(wanted - found.keys())
    if missing:
        raise StartupError("topics_missing", f"missing topics: {', '.join(missing)}. Run {apply}.")
    wrong = [f"{topic} has {count}" for topic, count in sorted(found.items()) if count != runtime.partitions]
    if wrong:
        raise StartupError(
            "partitions_mismatch",
            f"every topic must have {runtime.partitions} partitions, but {', '.join(wrong)}. Set --partitions to "
            f"what the topics have, or start a pipeline of its own: another --prefix, then {apply}.",
        )


async def _partition_counts(client: AIOKafkaClient, topics: Collection[str]) -> Mapping[str, int]:
    """Return the partition count of each topic that exists. Asking must not create the others."""
    while True:
        request = MetadataRequest(sorted(topics), allow_auto_topic_creation=False)
        response = await client.send(client.get_random_node(), request)
        described = {entry["topic"]: entry for entry in response.to_object()["topics"]}
        errors = [for_code(entry["error_code"]) for entry in described.values()]
        # A topic that was made a moment ago may have no leader yet.
        if any(getattr(error, "retriable", False) and error.__name__.startswith("Leader") for error in errors):
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        return {name: len(entry["partitions"]) for name, entry in described.items() if not entry["error_code"]}


async def _check_transactions(client: AIOKafkaClient, bootstrap: str) -> None:
    """Ask for a producer id without a transaction: it costs the broker nothing and shows whether it knows how."""
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
