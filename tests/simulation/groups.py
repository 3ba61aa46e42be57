"""A consumer group with the classic protocol, as its coordinator manages it (KIP-62, KIP-394).

Each method is one request. A join waits for all members, a sync for the leader; they call ``reply(result, error)``.
"""

from __future__ import annotations

from aiokafka.errors import (
    IllegalGenerationError,
    MemberIdRequired,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from msgspec import Struct


class Joined(Struct, frozen=True):
    """The answer to a join. Only the leader learns the names of all members."""

    generation: int
    leader: str
    members: tuple[str, ...]


class Membership:
    """A member. ``join`` and ``sync`` are the replies to its requests that wait."""

    def __init__(self, seen):
        self.seen, self.session, self.patience, self.metadata = seen, 0.0, 0.0, None
        self.join = self.sync = None
        self.share = ()

    def update(self, session, patience, metadata, join):
        self.session, self.patience, self.metadata, self.join = session, patience, metadata, join


class Group:
    """States: empty, preparing (members join), completing (the leader has to send the assignment), stable."""

    def __init__(self, loop, stream):
        self.loop, self._stream = loop, stream
        self.members, self.generation, self.leader, self.state = {}, 0, None, "empty"
        self.places, self.offsets = [], {}
        self.on_offsets = lambda offsets: None
        self._invited, self._unsynced = set(), set()
        self._round, self._names = 0, 0

    # Requests.

    def join(self, name, session, patience, metadata, reply):
        if name is None:
            raise MemberIdRequired(self._invite(session))
        if name in self._invited:
            self._invited.remove(name)
            self.members[name] = Membership(self.loop.now)
            self.leader = self.leader or name
        elif name not in self.members:
            raise UnknownMemberIdError
        elif self._has_joined(name, metadata):
            reply(self._joined(name), None)
            return
        member = self.members[name]
        if session != member.session:
            self.loop.on(None, session, self._watch, name, member, session)
        member.update(session, patience, metadata, reply)
        self._change()

    def sync(self, name, generation, shares, reply):
        """``shares``: by name, the assignments that the leader sends."""
        member = self._known(name, generation)
        if self.state == "preparing":
            raise RebalanceInProgressError
        self._unsynced.discard(name)
        member.sync = reply
        if self.state == "completing" and name == self.leader:
            self.state = "stable"
            for each, found in self.members.items():
                found.share, found.seen = shares.get(each, ()), self.loop.now
        if self.state == "stable":
            self._answer_syncs(None)

    def heartbeat(self, name, generation):
        self._known(name, generation)
        if self.state == "preparing":
            raise RebalanceInProgressError

    def commit(self, name, generation, offsets):
        """Store offsets with their metadata. The present generation may commit while members join the next.

        Any client may commit while the group is empty, with a negative generation.
        """
        if not (self.state == "empty" and generation < 0):
            self._known(name, generation)
            if self.state == "completing":
                raise RebalanceInProgressError
        self.offsets.update(offsets)
        self.on_offsets(offsets)

    def leave(self, name):
        if name in self._invited:
            self._invited.remove(name)
        elif name in self.members:
            self._remove(name)
        else:
            raise UnknownMemberIdError
        if self.state != "empty":
            self._change()

    # The coordinator.

    def rebalance(self):
        """Rebalance as if another member had joined and left."""
        if self.state in {"completing", "stable"}:
            self._prepare()

    def shares(self):
        """Return an assignment: each member gets every n-th partition, in an order that is drawn."""
        names = sorted(self.members, key=lambda name: (self._stream.fraction(), name))
        return {name: tuple(self.places[at :: len(names)]) for at, name in enumerate(names)}

    def _known(self, name, generation):
        if name not in self.members:
            raise UnknownMemberIdError
        if generation != self.generation:
            raise IllegalGenerationError
        self.members[name].seen = self.loop.now
        return self.members[name]

    def _invite(self, session):
        """Return the name of a new member. A further rebalance waits for its join until its session ends."""
        self._names += 1
        name = f"m{self._names}"
        self._invited.add(name)
        self.loop.on(None, session, self._end_invitation, name)
        return name

    def _end_invitation(self, name):
        if name in self._invited:
            self._invited.remove(name)
            self._complete_if_all_joined()

    def _has_joined(self, name, metadata):
        """True if a member repeats its join, so that it gets the present generation without a rebalance."""
        is_waited_for = self.state == "completing" or (self.state == "stable" and name != self.leader)
        return is_waited_for and metadata == self.members[name].metadata

    def _joined(self, name):
        members = tuple(self.members) if name == self.leader else ()
        return Joined(self.generation, self.leader, members)

    def _change(self):
        """Begin a rebalance, or continue the present one."""
        if self.state == "preparing":
            self._complete_if_all_joined()
        else:
            self._prepare()

    def _prepare(self):
        if self.state == "empty":
            self._complete()  # the first member waits for no other: `group.initial.rebalance.delay.ms` is 0
            return
        self.state = "preparing"
        self._round += 1
        self._answer_syncs(RebalanceInProgressError())
        self.loop.on(None, self._patience(), self._end_of_patience, self._round)
        self._complete_if_all_joined()

    def _patience(self):
        return max((member.patience for member in self.members.values()), default=0.0)

    def _end_of_patience(self, number):
        if self.state == "preparing" and self._round == number:
            for name in [name for name, member in self.members.items() if member.join is None]:
                self._remove(name)
            self._complete()

    def _complete_if_all_joined(self):
        if self.state == "preparing" and not self._invited and all(m.join is not None for m in self.members.values()):
            self._complete()

    def _complete(self):
        self.generation += 1
        self.state = "completing" if self.members else "empty"
        self._unsynced = set(self.members)
        for name, member in self.members.items():
            reply, member.join, member.seen = member.join, None, self.loop.now
            reply(self._joined(name), None)
        self.loop.on(None, self._patience(), self._end_of_syncs, self.generation)

    def _end_of_syncs(self, generation):
        if self.generation == generation and self.state != "preparing" and self._unsynced & self.members.keys():
            for name in sorted(self._unsynced & self.members.keys()):
                self._remove(name)
            self._prepare()

    def _answer_syncs(self, error):
        for member in self.members.values():
            if member.sync is not None:
                reply, member.sync, member.seen = member.sync, None, self.loop.now
                reply(None if error else member.share, error)

    def _remove(self, name):
        """Remove a member. A sync of it that waits is never answered."""
        member = self.members.pop(name)
        if member.join is not None:
            member.join(None, UnknownMemberIdError())
        if name == self.leader:
            self.leader = self._stream.choice(sorted(self.members)) if self.members else None

    def _watch(self, name, member, session):
        if self.members.get(name) is not member or member.session != session:
            return
        left = member.seen + session - self.loop.now
        if left <= 0 and member.join is None and member.sync is None:
            self.leave(name)
        else:
            self.loop.on(None, max(left, 0.05), self._watch, name, member, session)
