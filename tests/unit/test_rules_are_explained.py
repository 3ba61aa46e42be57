"""Every rule can be explained, and what a body cannot show says why."""

from __future__ import annotations

import string

from pipeline.registry import TARGETS
from pipeline.rules import RULES


def test_every_rule_can_be_explained():
    for key, rule in RULES.items():
        assert key == rule.id
        assert rule.summary.endswith(".")
        assert rule.repair
        assert rule.source
        assert [name for _, name, _, _ in string.Formatter().parse(rule.message) if name == ""] == []
        assert (rule.severity == "model") == bool(rule.families)
        # What no body shows may be another's, of which nothing else is known.
        known = {family.name for family in TARGETS[rule.target].families}
        assert rule.unchecked or {*rule.families} <= known


def test_rules_that_a_body_cannot_show_say_why():
    assert sorted(rule.id for rule in RULES.values() if rule.unchecked) == [
        "ANT-06b", "ANT-07a", "ANT-22", "ANT-33", "CDX-04", "COP-05", "GCL-05", "GEM-04b", "GEM-04c", "GEM-11",
        "MMX-01", "OAI-01c", "OAI-22", "RSP-04", "RSP-07", "RSP-23",
    ]  # fmt: skip
