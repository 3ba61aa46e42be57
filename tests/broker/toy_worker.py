"""A worker process with the toy stage: what the broker tests start, kill and stop. Options come as JSON."""

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
from aiokafka.errors import KafkaConnectionError

from pipeline.engine import Tuning, run_worker, writer
from pipeline.errors import BrokerDownError, ReknitError
from pipeline.kafka import KafkaSettings
from pipeline.settings import StateSettings


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

    writer.AIOKafkaProducer = FailingProducer


def main() -> int:
    options = json.loads(sys.argv[1])
    if point := options.pop("failpoint", None):
        fail_at(point)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    tuning = Tuning(**options.pop("tuning", {}))
    config = SimpleNamespace(
        kafka=msgspec.convert(options.pop("kafka", {}), KafkaSettings), state=StateSettings(), **options
    )
    stages = {topic: partial(toy_stage.ToyStage, topic) for topic in toy_stage.SOURCES}
    try:
        return run_worker(config, stages, outputs=[toy_stage.OUT], tuning=tuning)
    except ReknitError as error:
        sys.stderr.write(f"ERROR {error.code}: {error.message}\n")
        return 75 if isinstance(error, BrokerDownError) else 2


if __name__ == "__main__":
    raise SystemExit(main())
