"""Model names in every spelling lead to their family."""

from __future__ import annotations

import pytest

from pipeline.rules.anthropic.families import UNKNOWN, family_of


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-sonnet-4-5", "claude-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-4-5"),
        ("claude-haiku-4.5", "claude-4-5"),
        ("anthropic/claude-haiku-4.5", "claude-4-5"),
        ("us.anthropic.claude-opus-4-20250514-v1:0", "claude-4"),
        ("claude-sonnet-4@20250514", "claude-4"),
        ("claude-sonnet-4-0", "claude-4"),
        ("claude-opus-4-1-20250805", "claude-4-1"),
        ("claude-3-5-haiku-20241022", "claude-3-5"),
        ("claude-3-7-sonnet-latest", "claude-3-7"),
        ("claude-3-opus-20240229", "claude-3"),
        ("claude-2.1", "claude-2"),
        ("anthropic.claude-v2:1", "unknown"),
        ("claude-opus-4-6-v1", "claude-4-6"),
        ("claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("claude-opus-4-8", "claude-4-8"),
        ("claude-opus-4-8[1m]", "claude-4-8"),
        ("Claude-Sonnet-5", "claude-5"),
        ("claude-fable-5", "claude-5"),
        ("claude-opus-9", "unknown"),
        ("gpt-4-5", "unknown"),
        ("claude", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_names(model, name):
    assert family(model).name == name


def test_nothing_is_known_of_an_unknown_family():
    assert [getattr(UNKNOWN, fact) for fact in UNKNOWN.__struct_fields__ if fact != "name"] == [None] * 5


def test_families_by_fact():
    assert having("system_turns", value=True) == ("claude-4-8", "claude-5")
    assert "claude-sonnet-4-6" not in having("prefill", value=False) + having("prefill", value=True)
