"""Typed producers and consumers of the pipeline's topics, for programs on asyncio (``reknit.client``).

What a client of its own gets wrong at first is built in: records are keyed by the session and spread by murmur2, inputs
are idempotent, acknowledged by all copies and compressed with zstd, outputs are read only once they are committed, and
every turn has an id, so that sending it again changes nothing.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from pipeline.kafka import Cluster, KafkaSettings
from pipeline.objects import HasObjects, ObjectSettings


class Pipeline(Cluster, HasObjects, Protocol):
    """Where a pipeline is: its brokers, its prefix, its objects."""


class Brokers(Struct, frozen=True, kw_only=True):
    """Where the pipeline is. A worker's configuration (``pipeline.config.load_config``) serves as well."""

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
