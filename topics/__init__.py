"""The contract of the pipeline: its topics, their records and headers. Imports msgspec and nothing else of ours."""

from topics.declarations import (
    AGENT_TURNS,
    DEAD_LETTERS,
    EVENTS_STATE,
    HISTORY_FIXES,
    LARGEST_INPUT,
    LARGEST_OUTPUT,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TOPICS,
    TURNS_STATE,
    Topic,
    qualified,
)

__all__ = [
    "AGENT_TURNS",
    "DEAD_LETTERS",
    "EVENTS_STATE",
    "HISTORY_FIXES",
    "LARGEST_INPUT",
    "LARGEST_OUTPUT",
    "PROVIDER_EVENTS",
    "PROVIDER_REQUESTS",
    "SESSION_ITEMS",
    "TOPICS",
    "TURNS_STATE",
    "Topic",
    "qualified",
]
