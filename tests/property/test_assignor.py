"""The assignment of partitions for any group: complete, paired, balanced, sticky, and the same for each order."""

from collections import Counter

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import example, given
from hypothesis import strategies as st

from reknit.pipeline.engine.assignor import Claim, PairedAssignor, Subscriber, assign

TOPICS = ("turns", "events", "healing")
NAMES = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=6, unique=True)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 13), min_size=1)
CLAIMS = st.builds(
    Claim,
    st.integers(0, 4),
    st.dictionaries(
        st.sampled_from((*TOPICS, "other")), st.lists(st.integers(-1, 15), max_size=15).map(tuple), max_size=4
    ),
)


def numbered(counts):
    return {topic: range(count) for topic, count in counts.items()}


def owners(assigned):
    return {(topic, n): name for name, owned in assigned.items() for topic, numbers in owned.items() for n in numbers}


def sizes(assigned):
    return {name: sum(map(len, owned.values())) for name, owned in assigned.items()}


@st.composite
def groups(draw):
    """Members with any subscriptions and claims, and the partitions of the topics."""
    names = draw(NAMES)
    subscriptions = st.sets(st.sampled_from(TOPICS)).map(frozenset)
    members = {name: Subscriber(draw(subscriptions), draw(CLAIMS)) for name in names}
    return draw(COUNTS), members


@st.composite
def fleets(draw):
    """The same, where all members read all topics."""
    counts = draw(COUNTS)
    return counts, {name: Subscriber(frozenset(counts), draw(CLAIMS)) for name in draw(NAMES)}


def claiming(assigned, topics, number=1):
    """Members that claim what they got."""
    return {
        name: Subscriber(topics, Claim(number, {topic: tuple(n) for topic, n in owned.items()}))
        for name, owned in assigned.items()
    }


@given(groups())
def test_each_partition_with_a_subscriber_has_one_owner_that_subscribes_to_it(group):
    counts, members = group
    assigned = assign(numbered(counts), members)
    assert assigned.keys() == members.keys()
    listed = Counter((t, n) for owned in assigned.values() for t, numbers in owned.items() for n in numbers)
    read = {topic for member in members.values() for topic in member.topics}
    assert listed == Counter((topic, n) for topic, count in counts.items() if topic in read for n in range(count))
    assert all(topic in members[name].topics for name, owned in assigned.items() for topic in owned)


@given(groups())
def test_members_with_the_same_subscription_differ_by_one_unit(group):
    counts, members = group
    found = sizes(assign(numbered(counts), members))
    for name, member in members.items():
        for other, peer in members.items():
            if member.topics == peer.topics:
                assert abs(found[name] - found[other]) <= max(1, len(member.topics & counts.keys()))


@given(fleets())
def test_partitions_of_one_number_have_one_owner(fleet):
    counts, members = fleet
    found = owners(assign(numbered(counts), members))
    for number in range(max(counts.values())):
        assert len({found[topic, number] for topic, count in counts.items() if number < count}) == 1


@given(fleets())
def test_topics_of_the_same_size_are_balanced_one_by_one(fleet):
    counts, members = fleet
    size = max(counts.values())
    assigned = assign({topic: range(size) for topic in counts}, members)
    for topic in counts:
        shares = [len(owned.get(topic, ())) for owned in assigned.values()]
        assert max(shares) - min(shares) <= 1


@given(groups(), st.randoms(use_true_random=False))
def test_the_order_of_members_topics_and_partitions_has_no_influence(group, random):
    counts, members = group
    expected = assign(numbered(counts), members)

    def shuffled(entries):
        return dict(random.sample(list(entries.items()), len(entries)))

    partitions = {topic: random.sample(range(count), count) for topic, count in shuffled(counts).items()}
    assert assign(partitions, shuffled(members)) == expected


# Four more partitions of one topic; b must keep three of them after a has got the only whole unit.
@example(({"turns": 5, "events": 1, "healing": 1}, dict.fromkeys("ab", Subscriber(frozenset(TOPICS)))))
@given(fleets())
def test_a_rebalance_without_a_change_moves_nothing(fleet):
    counts, members = fleet
    assigned = assign(numbered(counts), members)
    assert assign(numbered(counts), claiming(assigned, frozenset(counts))) == assigned


@given(NAMES, st.integers(0, 40), st.data())
def test_a_join_moves_only_what_the_new_members_get(names, count, data):
    topics = frozenset({"turns", "events"})
    new = data.draw(st.sets(st.sampled_from("uvwxyz"), min_size=1))
    before = assign({topic: range(count) for topic in topics}, {name: Subscriber(topics) for name in names})
    members = claiming(before, topics) | {name: Subscriber(topics) for name in new}
    after = owners(assign({topic: range(count) for topic in topics}, members))
    moved = {place for place, name in owners(before).items() if after[place] != name}
    assert all(after[place] in new for place in moved)


@given(NAMES, st.integers(0, 40), st.data())
def test_a_leave_moves_only_what_the_former_members_had(names, count, data):
    topics = frozenset({"turns", "events"})
    partitions = {topic: range(count) for topic in topics}
    before = assign(partitions, {name: Subscriber(topics) for name in names})
    left = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    members = {name: member for name, member in claiming(before, topics).items() if name not in left}
    after = owners(assign(partitions, members))
    assert {place for place, name in owners(before).items() if after[place] != name} == {
        place for place, name in owners(before).items() if name in left
    }


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=20), st.sets(st.sampled_from("abcdef"), min_size=1)
)
def test_no_partition_moves_that_a_balanced_assignment_could_leave(owners_before, names):
    topics = frozenset({"turns", "events"})
    had = {name: tuple(n for n, owner in enumerate(owners_before) if owner == name) for name in names}
    members = {name: Subscriber(topics, Claim(1, dict.fromkeys(topics, numbers))) for name, numbers in had.items()}
    assigned = assign({topic: range(len(owners_before)) for topic in topics}, members)
    kept = sum(len(set(had[name]) & set(owned.get("turns", ()))) for name, owned in assigned.items())
    share, more = divmod(len(owners_before), len(names))
    above = sum(len(numbers) > share for numbers in had.values())
    assert kept == sum(min(len(numbers), share) for numbers in had.values()) + min(more, above)


@given(NAMES, st.integers(1, 12), st.lists(CLAIMS, max_size=3))
def test_claims_of_a_missed_assignment_give_way(names, count, stale):
    topics = frozenset({"turns", "events"})
    partitions = {topic: range(count) for topic in topics}
    before = assign(partitions, {name: Subscriber(topics) for name in names})
    current = claiming(before, topics, number=9)
    late = {f"late-{at}": Subscriber(topics, claim) for at, claim in enumerate(stale)}
    fresh = {name: Subscriber(topics) for name in late}
    kept, expected = (owners(assign(partitions, current | others)) for others in (late, fresh))
    assert {p for p in kept if kept[p] in names} == {p for p in expected if expected[p] in names}


class Cluster:
    def __init__(self, counts):
        self._counts = counts

    def partitions_for_topic(self, topic):
        """None for a topic without metadata, as aiokafka's."""
        return set(range(self._counts[topic])) if topic in self._counts else None


@given(
    COUNTS,
    NAMES,
    st.lists(
        st.one_of(
            st.none(),
            st.binary(max_size=30),
            st.sampled_from(
                [
                    b"[" * 100_000,
                    b'{"x":' + b"[" * 100_000,
                    b'{"owned":{"\xff":[1]}}',
                    b'{"number":9999999999999999999999999}',
                    b'{"number":-1}',
                    b'{"owned":{"turns":[true]}}',
                    b'{"owned":7}',
                    b"null",
                ]
            ),
        ),
        min_size=6,
        max_size=6,
    ),
)
def test_other_user_data_is_like_none(counts, names, garbage):
    def members(data):
        # As it is encoded and decoded on the way to the leader.
        return {
            name: ConsumerProtocolMemberMetadata(0, [*counts, "unknown"], each)
            for name, each in zip(names, data, strict=False)
        }

    cluster = Cluster(counts)
    found = PairedAssignor().assign(cluster, members(garbage))
    expected = PairedAssignor().assign(cluster, members([b""] * 6))
    assert {name: each.encode() for name, each in found.items()} == {
        name: each.encode() for name, each in expected.items()
    }
    assert ConsumerProtocolMemberAssignment.decode(found[names[0]].encode()).version == 0
