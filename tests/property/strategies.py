"""The histories of the conformance kit, under the name that the property tests know them by."""

from __future__ import annotations

from pipeline.testing.strategies import (
    assistant_blocks,
    broken_histories,
    healthy_histories,
    histories,
    perturbed_histories,
    policies,
    tool_loops,
    user_blocks,
)

__all__ = [
    "assistant_blocks",
    "broken_histories",
    "healthy_histories",
    "histories",
    "perturbed_histories",
    "policies",
    "tool_loops",
    "user_blocks",
]
