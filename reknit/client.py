"""Typed producers and consumers of the pipeline's topics: see ``pipeline.client``, whose public names these are."""

from pipeline.client import Brokers, Events, Place, Turns
from pipeline.client.consumers import (
    DeadLetter,
    DeadLetters,
    Fixes,
    Items,
    Request,
    Requests,
    ShownItem,
    ToldFix,
)
from pipeline.kafka import KafkaSettings
from topics.reducer import View, reduce

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
