"""A worker process with the toy stage: what the broker tests start, kill and stop. Options come as JSON."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
import msgspec
import toy_stage

from pipeline.engine import Tuning, run_worker
from pipeline.errors import BrokerDownError, ReknitError
from pipeline.kafka import KafkaSettings


def main() -> int:
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    tuning = Tuning(**options.pop("tuning", {}))
    config = SimpleNamespace(kafka=msgspec.convert(options.pop("kafka", {}), KafkaSettings), **options)
    stages = {topic: partial(toy_stage.ToyStage, topic) for topic in toy_stage.SOURCES}
    try:
        return run_worker(config, stages, outputs=[toy_stage.OUT], tuning=tuning)
    except ReknitError as error:
        sys.stderr.write(f"ERROR {error.code}: {error.message}\n")
        return 75 if isinstance(error, BrokerDownError) else 2


if __name__ == "__main__":
    raise SystemExit(main())
