"""Typed producers and consumers of the pipeline's topics: the public names of ``reknit.pipeline.client``."""

from reknit.pipeline.client import Brokers, Events, Place, Turns
from reknit.pipeline.client.consumers import (
    DeadLetter,
    DeadLetters,
    Fixes,
    Items,
    Request,
    Requests,
    ShownItem,
    ToldFix,
)
from reknit.pipeline.kafka import KafkaSettings
from reknit.topics.reducer import View, reduce

__all__ = [
    "Brokers",
    "DeadLetter",
    "DeadLetters",
    "Events",
    "Fixes",
    "Items",
    "KafkaSettings",
    "Place",
    "Request",
    "Requests",
    "ShownItem",
    "ToldFix",
    "Turns",
    "View",
    "reduce",
]
