"""The check of the releases of Faust, aiokafka and mode: the private parts that the engine uses, and their digests.

Versions are pinned, but an environment can have others. So the source text of every overridden or used private part
is compared with the digest it had when it was read and tested. When a digest differs, read the new source, go through
the tests in ``tests/broker``, and only then write the new table. ``python -m reknit.pipeline.engine.upstream`` prints
it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import sys
from typing import Any

from reknit.pipeline.engine.runtime import UpstreamChangedError

VERSIONS = {"faust-streaming": "0.15.3", "aiokafka": "0.14.0", "mode-streaming": "0.7.1"}

# Overridden or called parts, with the first 12 digits of the SHA-256 of their source.
PARTS = {
    "faust.app.base:App._new_transport": "42db531312dd",
    "faust.app.base:App._on_partitions_assigned": "de932b7927db",
    "faust.app.base:App._on_partitions_revoked": "d5c895bbe57d",
    "faust.app.base:App._stop_consumer": "55854a5de12c",
    "faust.app.base:App._stop_fetcher": "68494554c248",
    "faust.app.base:App.on_stop": "bfe5a933defb",
    "faust.transport.consumer:Consumer._drain_messages": "44a2500309e8",
    "faust.transport.consumer:Consumer._wait_next_records": "6218e1969a63",
    "faust.transport.consumer:Consumer.force_commit": "cc094614d22c",
    "faust.transport.consumer:Consumer._filter_tps_with_pending_acks": "f6f923977423",
    "faust.transport.consumer:Consumer.on_partitions_assigned": "29ce96596f05",
    "faust.transport.consumer:Consumer.on_partitions_revoked": "d04b7ae72c6f",
    "faust.transport.consumer:Consumer.on_stop": "45b1d2210ce2",
    "faust.transport.consumer:Consumer.perform_seek": "0e8c130ff4b0",
    "faust.transport.consumer:Consumer.resume_flow": "db59630f25b5",
    "faust.transport.consumer:Consumer.stop_flow": "cf7e875a2b0d",
    "faust.transport.consumer:Consumer.verify_all_partitions_active": "4e0e46f5c297",
    "faust.transport.consumer:ConsumerThread.on_partitions_assigned": "e59e8dda4372",
    "faust.transport.consumer:ConsumerThread.on_partitions_revoked": "c44013f1259c",
    "faust.transport.consumer:Fetcher._fetcher": "68f894f0b577",
    "faust.transport.consumer:Fetcher.on_stop": "21f3bae9b455",
    "faust.transport.consumer:ThreadDelegateConsumer.__init__": "7072ae80eac1",
    "faust.transport.consumer:ThreadDelegateConsumer.threadsafe_partitions_assigned": "50fac26841ad",
    "faust.transport.consumer:ThreadDelegateConsumer.threadsafe_partitions_revoked": "6c55d67e9eb0",
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread.__post_init__": "913dc7c0d957",
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._commit": "932852ce7a23",
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._create_worker_consumer": "c2701bfc3e6f",
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread._seek_wait": "9d221e816d94",
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread.on_thread_stop": "8dfc004e258b",
    "faust.transport.drivers.aiokafka:AIOKafkaConsumerThread.commit": "d31c8558ba25",
    "faust.transport.drivers.aiokafka:Consumer._new_consumer_thread": "0870ec53dea7",
    "faust.transport.drivers.aiokafka:Producer._new_producer": "e72355c3430e",
    "faust.transport.drivers.aiokafka:Producer._settings_auth": "6d47a0b8599c",
    "faust.transport.drivers.aiokafka:ConsumerRebalanceListener": "f3d04f29dfb3",
    "faust.transport.drivers.aiokafka:Transport": "966a67907f33",
    "faust.tables.recovery:Recovery._restart_recovery": "6bd8a8558a2d",
    "faust.tables.recovery:Recovery._resume_streams": "d986a6710c1a",
    "faust.tables.recovery:Recovery.on_rebalance": "aa4d997a1795",
    "faust.worker:Worker.__init__": "25a4d782432f",
    "faust.worker:Worker.on_init_dependencies": "86cc2f614ca6",
    "faust.worker:Worker.on_first_start": "acd1c71f20c4",
    "mode.worker:Worker._schedule_shutdown": "1a6a5dfc88c2",
    "mode.worker:Worker._stop_on_signal": "beff8fabfeb1",
    "mode.worker:Worker.execute_from_commandline": "212e98f635d7",
    "mode.worker:Worker.stop_and_shutdown": "bf1608cc3011",
    "mode.threads:QueueServiceThread.call_thread": "479edda75b54",
    "mode.threads:QueueServiceThread.on_thread_stop": "b58a5dbce24f",
    "mode.threads:ServiceThread._gather_remaining_tasks": "6f65b92dd101",
    "mode.threads:MethodQueue._process_enqueued": "d88a086d148c",
    "mode.loop:use": "024b254e332d",
    "aiokafka.client:AIOKafkaClient.bootstrap": "198943b004e5",
    "aiokafka.client:AIOKafkaClient.close": "02119d4d618a",
    "aiokafka.client:AIOKafkaClient.coordinator_lookup": "19cc69fb75f8",
    "aiokafka.client:AIOKafkaClient.send": "246b277687d7",
    "aiokafka.conn:AIOKafkaConnection._send_sasl_token": "7a3d948fc526",
    "aiokafka.conn:AIOKafkaConnection.close": "28f164aa1e4f",
    "aiokafka.conn:AIOKafkaConnection.send": "5909ea32f4ef",
    "aiokafka.conn:create_conn": "673276cbddb4",
    "aiokafka.consumer.fetcher:FetchResult.check_assignment": "b5340df67e3f",
    "aiokafka.consumer.fetcher:FetchResult.getall": "3e717e30de50",
    "aiokafka.consumer.fetcher:FetchResult._update_position": "83fb1473bf10",
    "aiokafka.consumer.fetcher:Fetcher._create_fetch_waiter": "61d840568746",
    "aiokafka.consumer.fetcher:Fetcher.fetched_records": "be4348896b9b",
    "aiokafka.consumer.fetcher:Fetcher._proc_fetch_request": "59bf948fff47",
    "aiokafka.consumer.fetcher:Fetcher.seek_to": "f0ba6aba6c22",
    "aiokafka.consumer.fetcher:PartitionRecords._consumer_record": "e668541600b0",
    "aiokafka.consumer.fetcher:PartitionRecords._unpack_records": "b803e6d46480",
    "aiokafka.consumer.group_coordinator:GroupCoordinator.check_errors": "ba6ca51ad348",
    "aiokafka.consumer.group_coordinator:GroupCoordinator._do_heartbeat": "dc1d6632aaa6",
    "aiokafka.consumer.group_coordinator:GroupCoordinator._heartbeat_routine": "61d010289522",
    "aiokafka.consumer.group_coordinator:GroupCoordinator.reset_generation": "537aa37c531b",
    "aiokafka.consumer.group_coordinator:GroupCoordinator.commit_offsets": "5cbe31af28d6",
    "aiokafka.consumer.group_coordinator:GroupCoordinator._on_join_complete": "0b0b3d204b40",
    "aiokafka.consumer.group_coordinator:GroupCoordinator._on_join_prepare": "4d9524afc0ee",
    "aiokafka.consumer.subscription_state:Assignment.state_value": "183fea82ef48",
    "aiokafka.consumer.subscription_state:SubscriptionState.fetch_context": "ff2a654dca23",
    "aiokafka.consumer.subscription_state:SubscriptionState.reassignment_in_progress": "6876e75ff981",
    "aiokafka.consumer.subscription_state:TopicPartitionState": "2b83334afadf",
    "aiokafka.protocol.admin:DescribeGroupsResponse_v3": "57436a7e5bce",
    "aiokafka.protocol.api:Request": "1dc66f0574be",
    "aiokafka.producer.message_accumulator:BatchBuilder.append": "657d76f55157",
    "aiokafka.producer.message_accumulator:BatchBuilder.size": "2f29cefafa91",
    "aiokafka.producer.message_accumulator:MessageAccumulator.add_batch": "5ed1c5b1367a",
    "aiokafka.producer.producer:AIOKafkaProducer.begin_transaction": "f5128199fc27",
    "aiokafka.producer.producer:AIOKafkaProducer.commit_transaction": "c7f9677c8941",
    "aiokafka.producer.producer:AIOKafkaProducer.create_batch": "c4efda4bb7a0",
    "aiokafka.producer.producer:AIOKafkaProducer.send_batch": "bf42b0f0c5c0",
    "aiokafka.record.default_records:_DefaultRecordBatchPy.__next__": "d05784bae3cb",
    "aiokafka.record.default_records:_DefaultRecordBatchPy._read_msg": "0997ab7a5850",
    "aiokafka.record.default_records:_DefaultRecordPy": "89405104e45a",
    "aiokafka.record.memory_records:_MemoryRecordsPy": "795a0314fbca",
    "aiokafka.producer.sender:AddPartitionsToTxnHandler.handle_response": "67266db24da2",
    "aiokafka.producer.sender:EndTxnHandler.handle_response": "89bd9721c28e",
    "aiokafka.producer.sender:InitPIDHandler.handle_response": "bdb0727aba5d",
    "aiokafka.producer.sender:Sender.close": "f60b3d023d25",
    "aiokafka.producer.sender:Sender._sender_routine": "2380dc5e333d",
}


def verify_upstream() -> None:
    """Compare versions and sources with what this engine was tested against.

    Raises:
        UpstreamChangedError: ``upstream_changed``, naming every part that differs.
    """
    different = [
        f"{package} is {installed(package)}, not {version}"
        for package, version in VERSIONS.items()
        if installed(package) != version
    ]
    different += [f"{part} was changed" for part, digest in PARTS.items() if digest_of(part) != digest]
    if different:
        pins = " ".join(f"{package}=={version}" for package, version in VERSIONS.items())
        raise UpstreamChangedError(
            "upstream_changed", f"{'; '.join(different)}. Install what this release was tested with: pip install {pins}"
        )


def installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def digest_of(part: str) -> str | None:
    """Return the digest of ``module:qualified.name``, None if it no longer exists."""
    module, _, path = part.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError):
        return None
    if isinstance(found, property):
        found = found.fget
    # mode wraps tasks and state methods in objects; the digest is of the function inside.
    found = inspect.unwrap(getattr(found, "fun", found))
    try:
        return hashlib.sha256(inspect.getsource(found).encode()).hexdigest()[:12]
    except OSError:
        return None  # installed without sources: no digest


def main() -> int:
    """Print the table for the installed releases."""
    for part in PARTS:
        sys.stdout.write(f'    "{part}": "{digest_of(part)}",\n')
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
