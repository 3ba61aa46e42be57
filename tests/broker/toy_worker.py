"""A worker process with the toy stage: the broker tests start, kill and stop it. Options are JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
import msgspec
import toy_stage
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.structs import RecordMetadata

from reknit.pipeline.engine import Tuning, run_worker, seams
from reknit.pipeline.errors import BrokerDownError, ReknitError
from reknit.pipeline.kafka import KafkaSettings
from reknit.pipeline.metrics import Metrics
from reknit.pipeline.settings import StateSettings


def fail_at(point: str) -> None:
    """Let commits fail: every 20th, three times; or end the process in one, or stop it as soon as a file is there."""
    counts, flag = {"commits": 0}, Path(point)

    def freeze(flag: Path) -> None:
        if flag.is_file():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)

    class FailingProducer(AIOKafkaProducer):
        async def commit_transaction(self) -> None:
            counts["commits"] += 1
            freeze(flag)
            now = counts["commits"] in {20, 40, 60}
            if now and point == "no end":
                await asyncio.Event().wait()
            if now and point == "killed before the commit":
                os.kill(os.getpid(), signal.SIGKILL)
            if now and point == "lost before the commit":
                raise KafkaConnectionError("a failpoint")
            await super().commit_transaction()
            if now and point == "killed after the commit":
                os.kill(os.getpid(), signal.SIGKILL)
            if now and point == "lost after the commit":
                raise KafkaConnectionError("a failpoint")

    seams.AIOKafkaProducer = FailingProducer


def repeat_an_end(*, die: bool) -> None:
    """Send the first transaction's EndTxn again, once the outputs of the second one are delivered and its state is not.

    The first commit takes one retry pause longer, as after a lost connection. With ``die`` the process ends then.
    """
    ends: list[tuple[str, int, int]] = []  # of the first transaction: transactional id, producer id, epoch
    delivered: list[asyncio.Future[RecordMetadata]] = []

    class RepeatingProducer(AIOKafkaProducer):
        async def commit_transaction(self) -> None:
            await super().commit_transaction()
            if not ends:
                manager = self._txn_manager
                ends.append((manager.transactional_id, manager.producer_id, manager.producer_epoch))
                await asyncio.sleep(0.1)

        async def send_batch(
            self, batch: BatchBuilder, topic: str, *, partition: int
        ) -> asyncio.Future[RecordMetadata]:
            if len(ends) == 1 and topic.endswith(toy_stage.STATES[0]):
                await delivered[-1]
                await self._repeat(*ends[0])
            future = await super().send_batch(batch, topic, partition=partition)
            delivered.append(future)
            return future

        async def _repeat(self, name: str, producer_id: int, epoch: int) -> None:
            ends.append((name, producer_id, epoch))
            client = AIOKafkaClient(bootstrap_servers=self.client._bootstrap_servers)
            await client.bootstrap()
            node = await client.coordinator_lookup(CoordinationType.TRANSACTION, name)
            await client.ready(node)
            answer = await client.send(
                node,
                EndTxnRequest(
                    transactional_id=name, producer_id=producer_id, producer_epoch=epoch, transaction_result=True
                ),
            )
            logging.getLogger("toy").info("the late EndTxn is answered with error %d", answer.error_code)
            await client.close()
            if die:
                await asyncio.sleep(0.3)  # the broker writes its markers
                os.kill(os.getpid(), signal.SIGKILL)

    seams.AIOKafkaProducer = RepeatingProducer


def main() -> int:
    options = json.loads(sys.argv[1])
    if point := options.pop("failpoint", None):
        if point.startswith("late end"):
            repeat_an_end(die=point == "late end, killed")
        else:
            fail_at(point)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    tuning = Tuning(**options.pop("tuning", {}))
    config = SimpleNamespace(
        kafka=msgspec.convert(options.pop("kafka", {}), KafkaSettings),
        state=msgspec.convert(options.pop("state", {}), StateSettings),
        **options,
    )
    stages = {topic: partial(toy_stage.ToyStage, topic) for topic in toy_stage.SOURCES}
    try:
        return run_worker(config, stages, outputs=[toy_stage.OUT], metrics=Metrics(), tuning=tuning)
    except ReknitError as error:
        sys.stderr.write(f"ERROR {error.code}: {error.message}\n")
        return 75 if isinstance(error, BrokerDownError) else 2


if __name__ == "__main__":
    raise SystemExit(main())
