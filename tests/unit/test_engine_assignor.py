"""The strategies that a worker offers to its group: user data, and a mixed group."""

from __future__ import annotations

from itertools import pairwise

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.types import TP

from reknit.pipeline.engine.assignor import Claim, PairedAssignor, Subscriber, assign, strategies
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from reknit.pipeline.engine.worker import make_app
from reknit.pipeline.settings import Config

TOPICS = ("events", "turns")


class Cluster:
    def __init__(self, **counts):
        self._counts = counts

    def partitions_for_topic(self, topic):
        return set(range(self._counts[topic])) if topic in self._counts else None


class Group:
    """Members of a group with the strategies that each offers, and the coordinator's choice among them."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.members = {}

    def rebalance(self, *, lost=()):
        """Begin a generation; return its strategy and the assignment. Members that are ``lost`` do not see it."""
        joined = {name: offered for name, offered in self.members.items() if name not in lost}
        common = set.intersection(*({each.name for each in offered} for offered in joined.values()))
        chosen = next(each.name for each in next(iter(joined.values())) if each.name in common)
        # All of it is encoded and decoded as on its way.
        requests = {
            name: ConsumerProtocolMemberMetadata.decode(self._of(name, chosen).metadata(set(TOPICS)).encode())
            for name in joined
        }
        made = self._of(min(joined), chosen).assign(self._cluster, requests)
        found = {}
        for name in joined:
            answer = ConsumerProtocolMemberAssignment.decode(made[name].encode())
            self._of(name, chosen).on_assignment(answer)
            found[name] = {topic: sorted(numbers) for topic, numbers in answer.assignment if numbers}
        return chosen, found

    def _of(self, name, chosen):
        return next(each for each in self.members[name] if each.name == chosen)


@pytest.fixture
def faust(tmp_path):
    """Return what creates Faust's strategy of one worker."""

    def make(name):
        settings = Config(bootstrap_servers="nobody:1", prefix="p.", state_dir=str(tmp_path / name))
        runtime = Runtime(settings, {}, NoMetrics(), Tuning())
        return make_app(runtime).assignor

    return make


@pytest.fixture
def group():
    return Group(Cluster(turns=12, events=12))


def places(found):
    return {TP(topic, n): name for name, owned in found.items() for topic, numbers in owned.items() for n in numbers}


def moved(before, after):
    return sum(places(after)[place] != name for place, name in places(before).items())


def new(faust, name):
    return strategies(faust(name))


def test_a_first_assignment_gives_each_member_pairs():
    members = {name: Subscriber(frozenset(TOPICS)) for name in ("b", "a")}
    assert assign({"turns": range(4), "events": range(4)}, members) == {
        "a": {"events": [0, 1], "turns": [0, 1]},
        "b": {"events": [2, 3], "turns": [2, 3]},
    }


def test_topics_of_different_sizes_are_paired_as_far_as_both_go_and_balanced_in_total():
    members = {name: Subscriber(frozenset(TOPICS)) for name in "abc"}
    assert assign({"turns": range(4), "events": range(8)}, members) == {
        "a": {"events": [0, 1], "turns": [0, 1]},
        "b": {"events": [2, 4, 5], "turns": [2]},
        "c": {"events": [3, 6, 7], "turns": [3]},
    }


def test_a_member_that_reads_one_topic_gets_more_of_it():
    members = {"b": Subscriber(frozenset(TOPICS)), "a": Subscriber(frozenset({"turns"}))}
    assert assign({"turns": range(4), "events": range(4)}, members) == {
        "a": {"turns": [0, 1, 2, 3]},
        "b": {"events": [0, 1, 2, 3]},
    }


def test_a_member_without_topics_and_one_too_many_get_nothing():
    members = {name: Subscriber(frozenset({"turns"})) for name in "ab"} | {"none": Subscriber(frozenset())}
    assert assign({"turns": range(1)}, members) == {"a": {"turns": [0]}, "b": {}, "none": {}}
    assert assign({}, members) == {name: {} for name in members}
    assert assign({"turns": range(1)}, {}) == {}


def test_the_claim_to_a_whole_pair_counts_more_than_one_to_a_half():
    members = {
        "half": Subscriber(frozenset(TOPICS), Claim(1, {"turns": (0,)})),
        "a": Subscriber(frozenset(TOPICS), Claim(1, {"turns": (0,), "events": (0,)})),
    }
    assert assign({"turns": range(2), "events": range(2)}, members)["a"] == {"events": [0], "turns": [0]}


def test_a_group_of_new_members_is_paired_and_sticky(group, faust):
    group.members["a"] = new(faust, "a")
    assert group.rebalance() == ("reknit-paired", {"a": {topic: list(range(12)) for topic in TOPICS}})
    sizes = [group.rebalance()[1]]
    for name in "bc":
        group.members[name] = new(faust, name)
        sizes.append(group.rebalance()[1])
    del group.members["b"]
    sizes.append(group.rebalance()[1])
    assert [moved(*two) for two in pairwise(sizes)] == [12, 8, 8]
    assert [sorted(len(owned["turns"]) for owned in found.values()) for found in sizes] == [
        [12],
        [6, 6],
        [4, 4, 4],
        [6, 6],
    ]
    assert all(owned["turns"] == owned["events"] for found in sizes for owned in found.values())


def test_a_group_uses_fausts_strategy_until_the_last_old_member_has_left(group, faust):
    group.members["old-1"], group.members["old-2"] = [faust("old-1")], [faust("old-2")]
    assert group.rebalance()[0] == "faust"
    group.members["new-1"] = new(faust, "new-1")
    assert group.rebalance()[0] == "faust"
    del group.members["old-1"]
    group.members["new-2"] = new(faust, "new-2")
    name, mixed = group.rebalance()
    assert name == "faust"
    assert len(places(mixed)) == 24
    del group.members["old-2"]
    name, found = group.rebalance()
    assert name == "reknit-paired"
    assert [len(owned["turns"]) for owned in found.values()] == [6, 6]
    # Partitions that Faust's strategy assigned are claimed.
    kept = {place: owner for place, owner in places(mixed).items() if owner in group.members}
    assert kept.items() <= places(found).items()


def test_a_rollback_uses_fausts_strategy_again_and_each_partition_has_one_owner(group, faust):
    group.members |= {name: new(faust, name) for name in "ab"}
    assert group.rebalance()[0] == "reknit-paired"
    group.members["c"] = new(faust, "c")
    group.rebalance()
    group.members["old"] = [faust("old")]
    name, found = group.rebalance()
    assert name == "faust"
    assert len(places(found)) == sum(len(n) for owned in found.values() for n in owned.values()) == 24
    del group.members["old"]
    name, again = group.rebalance()
    assert name == "reknit-paired"
    assert moved(found, again) == len([owner for owner in places(found).values() if owner == "old"])


def test_a_member_that_missed_an_assignment_does_not_take_its_partitions_back(group, faust):
    group.members |= {name: new(faust, name) for name in "abc"}
    _, first = group.rebalance()
    _, without = group.rebalance(lost=["a"])
    _, again = group.rebalance()
    kept = places(without).items() & places(again).items()
    assert len(kept) == 16
    assert places(again).keys() - dict(kept).keys() == {place for place, owner in places(again).items() if owner == "a"}
    assert places(first).keys() == places(again).keys()


def test_two_clients_of_one_process_have_claims_of_their_own(group, faust):
    one, other = PairedAssignor(), PairedAssignor()
    one.on_assignment(ConsumerProtocolMemberAssignment(0, [("turns", [3])], b'{"number":4}'))
    assert one.metadata({"turns"}).user_data == b'{"number":4,"owned":{"turns":[3]}}'
    assert other.metadata({"turns"}).user_data == b'{"number":0,"owned":{}}'
