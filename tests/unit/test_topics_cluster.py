"""Differences between the declared topics and a cluster's topics."""

import pytest

from reknit.topics import TOPICS
from reknit.topics.cluster import Difference, Found, Wanted, altered, by_topic, differences, wanted

WANTED = Wanted("t", 3, 1, {"cleanup.policy": "delete", "retention.ms": "1000"})


def found(partitions=3, copies=1, **settings):
    known = {"cleanup.policy": "delete", "retention.ms": "1000", "flush.ms": "9"}
    return Found("t", partitions, copies, {**known, **{name.replace("_", "."): v for name, v in settings.items()}})


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (found(), []),
        (None, [("topic", "present", "absent", "missing")]),
        (found(partitions=6, copies=3), [("partitions", "3", "6", "fixed"), ("replication.factor", "1", "3", "fixed")]),
        (found(retention_ms="5"), [("retention.ms", "1000", "5", "setting")]),
        (Found("t", 3, 1, {"cleanup.policy": "delete"}), [("retention.ms", "1000", "", "unknown")]),
    ],
    ids=["as declared", "absent", "fixed", "a setting", "a setting that the broker does not tell"],
)
def test_differences_are_classified_by_their_possible_repair(there, expected):
    assert differences(WANTED, there) == [Difference("t", *told) for told in expected]


@pytest.mark.parametrize(
    ("declared", "told", "same"),
    [
        ("compact,delete", "delete, compact", True),
        ("0.1", "0.10", True),
        ("1000", "1000.0", True),
        ("producer", "zstd", False),
        ("compact", "compact,delete", False),
    ],
)
def test_values_are_compared_by_meaning(declared, told, same):
    topic = Wanted("t", 1, 1, {"s": declared})
    assert (differences(topic, Found("t", 1, 1, {"s": told})) == []) is same


def test_an_alteration_keeps_foreign_settings_of_the_topic():
    there = Found("t", 3, 1, {}, {"retention.ms": "5", "flush.ms": "9"})
    assert altered(WANTED, there) == {"retention.ms": "1000", "flush.ms": "9", "cleanup.policy": "delete"}


def test_every_declared_topic_is_wanted_under_its_prefix():
    plan = wanted(prefix="p.", partitions=6, replication_factor=3)
    assert [topic.name for topic in plan] == [f"p.{topic.name}" for topic in TOPICS]
    assert {(topic.partitions, topic.replication_factor) for topic in plan} == {(6, 3)}
    assert {topic.settings["min.insync.replicas"] for topic in plan} == {"2"}
    assert set(by_topic(plan, {})) == {topic.name for topic in plan}
