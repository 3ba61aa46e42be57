"""The assignment of partitions to the members of the group: sticky, balanced, and paired.

Partitions of the same number are one unit, if the same members subscribe to their topics. So one worker has the turns
and the events of a session, and each worker has its share of both. (aiokafka's own sticky assignor was seen to give all
turns to one worker and all events to the other.) Pairs are for balance only; no stage needs the other one.

Each member claims the partitions that it had in the user data of its join request. A wrong claim is harmless: each
partition still has one owner. The leader numbers the assignments and sends the number in their user data, so that
claims of a member that missed some give way. (The client does not pass the generation to a strategy.)

For one release, workers offer Faust's strategy as well. The coordinator selects a strategy that all members know, and
workers of former releases only know that one: a mixed group uses it until the last of them has left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

if TYPE_CHECKING:
    from aiokafka.cluster import ClusterMetadata

# The version of Kafka's formats of a subscription and of an assignment.
_VERSION: Final = 0
# A limit far above every real number, so that a member's invalid number cannot exceed what the encoder accepts.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

Partitions = Mapping[str, Sequence[int]]


class Claim(msgspec.Struct, frozen=True):
    """The partitions that a member had by topic, and the number of the last assignment that it got."""

    number: _Number = 0
    owned: Mapping[str, tuple[int, ...]] = {}


class Subscriber(msgspec.Struct, frozen=True):
    """A member of the group: the topics that it reads, and its claim."""

    topics: frozenset[str]
    claim: Claim = Claim()


class _Layer(msgspec.Struct, frozen=True):
    """Units of the same topics, which the same members may own: partitions ``numbers`` of each topic."""

    members: tuple[str, ...]
    topics: tuple[str, ...]
    numbers: tuple[int, ...]


def assign(partitions: Mapping[str, Iterable[int]], members: Mapping[str, Subscriber]) -> dict[str, Partitions]:
    """Return the partitions of each member by topic.

    Each partition of a topic with a subscriber has one owner. The numbers of partitions of two members with the same
    subscription differ by one unit at most. A member keeps what it claims, as far as that allows. The order of the
    arguments has no influence.
    """
    assigned: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in members}
    loads = dict.fromkeys(members, 0)
    for layer in _layers(partitions, members):
        for name, numbers in _share(layer, members, loads).items():
            loads[name] += len(numbers) * len(layer.topics)
            for topic in layer.topics:
                assigned[name][topic] += numbers
    return {
        name: {topic: sorted(owned[topic]) for topic in sorted(owned) if owned[topic]}
        for name, owned in assigned.items()
    }


def _layers(partitions: Mapping[str, Iterable[int]], members: Mapping[str, Subscriber]) -> list[_Layer]:
    """Return the units in the order of their assignment: those with the fewest candidates first, then the largest."""
    units: dict[tuple[tuple[str, ...], int], list[str]] = defaultdict(list)
    for topic in sorted(partitions):
        subscribed = tuple(sorted(name for name, member in members.items() if topic in member.topics))
        for number in set(partitions[topic]) if subscribed else ():
            units[subscribed, number].append(topic)
    layers: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = defaultdict(list)
    for (subscribed, number), topics in units.items():
        layers[subscribed, tuple(topics)].append(number)
    found = [_Layer(names, topics, tuple(sorted(numbers))) for (names, topics), numbers in layers.items()]
    return sorted(found, key=lambda layer: (len(layer.members), -len(layer.topics), layer.members, layer.topics))


def _share(layer: _Layer, members: Mapping[str, Subscriber], loads: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the numbers of a layer that each member gets."""
    claimed = _claimed(layer, members)
    counts = _counts(layer, claimed, loads)
    shares = {name: claimed[name][: counts[name]] for name in layer.members}
    kept = {number for numbers in shares.values() for number in numbers}
    free = [number for number in layer.numbers if number not in kept]
    for name in layer.members:
        missing = counts[name] - len(shares[name])
        shares[name] += free[:missing]
        del free[:missing]
    return shares


def _claimed(layer: _Layer, members: Mapping[str, Subscriber]) -> dict[str, list[int]]:
    """Return the numbers that each member had. Of several claims to a number the last assignment's counts."""
    found: dict[str, list[int]] = {name: [] for name in layer.members}
    owned = {
        name: [frozenset(members[name].claim.owned.get(topic, ())) for topic in layer.topics] for name in layer.members
    }
    for number in layer.numbers:
        claims = [
            (members[name].claim.number, sum(number in numbers for numbers in owned[name]), name)
            for name in layer.members
            if any(number in numbers for numbers in owned[name])
        ]
        if claims:
            found[max(claims)[-1]].append(number)
    return found


def _counts(layer: _Layer, claimed: Mapping[str, Sequence[int]], loads: Mapping[str, int]) -> dict[str, int]:
    """Return how many units each member gets: each goes to the member with the fewest partitions.

    Of several such members the one with the most claims left gets it, so that few partitions move.
    """
    counts = dict.fromkeys(layer.members, 0)

    def rank(name: str) -> tuple[int, int, str]:
        return loads[name] + counts[name] * len(layer.topics), counts[name] - len(claimed[name]), name

    for _ in layer.numbers:
        counts[min(layer.members, key=rank)] += 1
    return counts


class _Numbered(msgspec.Struct, frozen=True):
    """The user data of an assignment."""

    number: _Number = 0


_UserData = TypeVar("_UserData", Claim, _Numbered)


def _read(kind: type[_UserData], user_data: bytes | None) -> _UserData:
    """Return decoded user data; without what the sender meant if it is something else."""
    try:
        return msgspec.json.decode(user_data or b"{}", type=kind)
    except (ValueError, RecursionError):  # errors of msgspec and invalid UTF-8 are ValueErrors
        return kind()


class PairedAssignor(AbstractPartitionAssignor):  # type: ignore[misc] # aiokafka has no types
    """The assignment as a strategy of aiokafka's client; each client needs an object of its own."""

    name = "reknit-paired"

    def __init__(self) -> None:
        self._claim = Claim()

    def owns(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Note the partitions that this member got, also from another strategy."""
        owned = {topic: tuple(numbers) for topic, numbers in assignment.assignment}
        self._claim = Claim(self._claim.number, owned)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Note the partitions that this member got, and the number of the assignment."""
        self._claim = Claim(_read(_Numbered, assignment.user_data).number)
        self.owns(assignment)

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return this member's part of a join request."""
        return ConsumerProtocolMemberMetadata(_VERSION, sorted(topics), msgspec.json.encode(self._claim))

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Return the assignment of all members; the client of the group's leader calls it."""
        subscribers = {
            name: Subscriber(frozenset(member.subscription), _read(Claim, member.user_data))
            for name, member in members.items()
        }
        topics = {topic for member in subscribers.values() for topic in member.topics}
        partitions = {topic: cluster.partitions_for_topic(topic) or () for topic in topics}
        last = max((member.claim.number for member in subscribers.values()), default=0)
        user_data = msgspec.json.encode(_Numbered(last + 1))
        return {
            name: ConsumerProtocolMemberAssignment(_VERSION, list(owned.items()), user_data)
            for name, owned in assign(partitions, subscribers).items()
        }


class _Former(AbstractPartitionAssignor):  # type: ignore[misc] # as above
    """The strategy of former releases. Partitions that it assigned are claimed once the group has changed to pairs."""

    def __init__(self, strategy: AbstractPartitionAssignor, paired: PairedAssignor) -> None:
        self._strategy, self._paired = strategy, paired

    @property
    def name(self) -> str:
        return self._strategy.name  # type: ignore[no-any-return] # as above

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        return self._strategy.metadata(topics)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        self._paired.owns(assignment)
        self._strategy.on_assignment(assignment)

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        return self._strategy.assign(cluster, members)  # type: ignore[no-any-return] # as above


def strategies(former: AbstractPartitionAssignor) -> list[AbstractPartitionAssignor]:
    """Return the strategies that a client offers, the preferred one first; ``former`` is that of former releases."""
    paired = PairedAssignor()
    return [paired, _Former(former, paired)]
