"""Findings of `reknit topics check`, each with its remedy."""

from types import SimpleNamespace

import pytest

from reknit.pipeline.kafka.check import of_layout, of_records, of_topics
from reknit.pipeline.kafka.partitions import usual_partition
from reknit.topics.cluster import Difference, Found

NOW = 1_700_000_000_000
PARTITIONS = [0, 1, 2]
OTHER_LAYOUT = "set `partitions` to what the topics have, or create new topics under another prefix"
OTHER_COPIES = "reassign its partitions with Kafka's own tools"


def record(key, partition=None, *, offset=7, ahead_ms=0):
    if partition is None:
        partition = usual_partition(key.decode(), PARTITIONS)
    return SimpleNamespace(key=key, partition=partition, offset=offset, timestamp=NOW + ahead_ms)


def lines(findings):
    return [finding.line() for finding in findings]


@pytest.mark.parametrize(
    ("difference", "line"),
    [
        (
            Difference("agent.turns.v1", "topic", "present", "absent", "missing"),
            "error: agent.turns.v1: the topic does not exist; run `reknit topics apply`",
        ),
        (
            Difference("agent.turns.v1", "retention.ms", "-1", "1000", "setting"),
            "error: agent.turns.v1: retention.ms is 1000, declared is -1; run `reknit topics apply --fix`",
        ),
        (
            Difference("agent.turns.v1", "partitions", "12", "3", "fixed"),
            f"warning: agent.turns.v1: it has 3 partitions, 12 are configured; {OTHER_LAYOUT}",
        ),
        (
            Difference("agent.turns.v1", "replication.factor", "3", "1", "fixed"),
            f"warning: agent.turns.v1: it has 1 copies, 3 are configured; {OTHER_COPIES}",
        ),
    ],
)
def test_a_topic_that_is_not_as_declared(difference, line):
    assert lines(of_topics([difference])) == [line]


def test_a_setting_that_the_broker_does_not_report_is_no_finding():
    assert lines(of_topics([Difference("agent.turns.v1", "retention.ms", "-1", "", "unknown")])) == []


def test_topics_with_different_numbers_of_partitions():
    topics = [Found(name, count, 1, {}) for name, count in (("b", 3), ("a", 3), ("c", 4))]
    assert lines(of_layout(topics[:2])) == []
    (found,) = of_layout(topics)
    assert found.problem == "their numbers of partitions differ: 3: a, b; 4: c"
    assert found.remedy == "create all of them with the same number, under another prefix"


def test_records_of_producers_that_follow_the_contract_have_no_finding():
    assert of_records("t", PARTITIONS, [record(f"s{number}".encode()) for number in range(20)], NOW) == []
    assert of_records("t", PARTITIONS, [], NOW) == []
    assert of_records("t", PARTITIONS, [record(b"s", ahead_ms=59_000)], NOW) == []


def test_records_in_other_partitions_are_named():
    elsewhere = (usual_partition("s", PARTITIONS) + 1) % 3
    (found,) = of_records(
        "t", PARTITIONS, [record(b"s"), *(record(b"s", elsewhere, offset=at) for at in range(5))], NOW
    )
    places = ", ".join(f"{elsewhere}/{at}" for at in range(3))
    assert found.problem == f"5 of 6 records are in another partition than murmur2 of their key (at {places})"
    assert "partitioner=murmur2_random" in found.remedy


def test_keys_that_name_no_session():
    found = of_records("t", PARTITIONS, [record(None, 0), record(b"", 0), record(b"\xff", 0)], NOW)
    assert [finding.problem for finding in found] == [
        "the key of 2 of 3 records is missing",
        "the key of 1 of 3 records is not UTF-8",
    ]


def test_a_clock_that_is_ahead():
    (found,) = of_records("t", PARTITIONS, [record(b"s", ahead_ms=120_000), record(b"s")], NOW)
    assert found.problem == "its newest record is 120 s ahead of this machine's clock"
