"""The topics of the contract are consistent."""

import re

import pytest

from reknit import topics
from reknit.topics import BY_NAME, LARGEST_INPUT, LARGEST_OUTPUT, LARGEST_STATE, TOPICS

MIB = 1024 * 1024
# Topic names that Kafka 4 accepts, leaving space for a prefix of 100 characters.
LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,149}")


def settings(topic, replication_factor=1):
    return {setting.name: setting.value for setting in topic.settings_on(replication_factor)}


def test_the_contract_is_six_topics_and_two_changelogs():
    assert [(topic.name, topic.direction) for topic in TOPICS] == [
        ("agent.turns.v1", "in"),
        ("provider.events.v1", "in"),
        ("provider.requests.v1", "out"),
        ("session.items.v1", "out"),
        ("history.fixes.v1", "out"),
        ("pipeline.dead-letters.v1", "out"),
        ("pipeline.turns-state.v1", "internal"),
        ("pipeline.events-state.v1", "internal"),
    ]
    assert list(BY_NAME.values()) == list(TOPICS)


def test_names_are_domain_entity_and_major():
    for topic in TOPICS:
        assert LEGAL.fullmatch(topic.name)
        assert re.fullmatch(r"[a-z]+\.[a-z-]+\.v1", topic.name)
        assert topics.qualified(topic.name, "p.") == f"p.{topic.name}"


def test_record_limits_are_those_of_the_design():
    assert (LARGEST_INPUT, LARGEST_OUTPUT) == (64 * MIB, 68 * MIB)
    largest = {"in": LARGEST_INPUT, "out": LARGEST_OUTPUT, "internal": LARGEST_STATE}
    for topic in TOPICS:
        assert settings(topic)["max.message.bytes"] == str(largest[topic.direction])


def test_state_is_compacted_and_everything_else_is_a_log():
    for topic in TOPICS:
        policy = "compact" if topic.direction == "internal" else "delete"
        assert settings(topic)["cleanup.policy"] == policy
        assert ("retention.ms" in settings(topic)) == (policy == "delete")
        assert ("delete.retention.ms" in settings(topic)) == (policy == "compact")


def test_a_dead_letter_is_retained_as_long_as_the_longest_input():
    inputs = [int(settings(topic)["retention.ms"]) for topic in TOPICS if topic.direction == "in"]
    assert int(settings(BY_NAME[topics.DEAD_LETTERS])["retention.ms"]) >= max(inputs)


def test_every_setting_has_a_reason_and_is_listed_once():
    for topic in TOPICS:
        names = [setting.name for setting in topic.settings_on(3)]
        assert len(names) == len(set(names))
        assert all(setting.why.endswith(".") for setting in topic.settings_on(3))


@pytest.mark.parametrize(("copies", "needed"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_writers_wait_for_a_majority_if_there_are_three_replicas(copies, needed):
    assert {settings(topic, copies)["min.insync.replicas"] for topic in TOPICS} == {needed}
