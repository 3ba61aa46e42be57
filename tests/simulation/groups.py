"""A consumer group with the classic protocol. Joining and syncing are one step."""

from __future__ import annotations

from aiokafka.errors import IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError


class Membership:
    def __init__(self, seen, session):
        self.seen, self.session, self.answer = seen, session, None


class Group:
    def __init__(self, loop, stream):
        self.loop, self._stream = loop, stream
        self.members, self.generation = {}, 0
        self.places, self.offsets = [], {}
        self.on_offsets = lambda offsets: None
        self._preparing, self._round, self._names = False, 0, 0

    def join(self, name, session, patience, answer):
        """Call ``answer(name, generation, places)`` once all known members have joined."""
        if name not in self.members:
            self._names += 1
            name = f"m{self._names}"
            self.members[name] = Membership(self.loop.now, session)
            self._watch(name)
        self.members[name].answer = answer
        self.rebalance(patience)
        self._complete()

    def rebalance(self, patience):
        if self.members and not self._preparing:
            self._preparing = True
            self._round += 1
            self.loop.on(None, patience, self._end_of_patience, self._round)

    def _end_of_patience(self, number):
        if self._preparing and self._round == number:
            self.members = {name: member for name, member in self.members.items() if member.answer is not None}
            self._complete()

    def _complete(self):
        if not (self._preparing and self.members) or any(m.answer is None for m in self.members.values()):
            return
        self._preparing = False
        self.generation += 1
        names = sorted(self.members, key=lambda name: (self._stream.fraction(), name))
        for at, name in enumerate(names):
            member = self.members[name]
            answer, member.answer, member.seen = member.answer, None, self.loop.now
            answer(name, self.generation, self.places[at :: len(names)])

    def _watch(self, name):
        if (member := self.members.get(name)) is None:
            return
        left = member.seen + member.session - self.loop.now
        if left <= 0 and member.answer is None:
            self.leave(name)
        else:
            self.loop.on(None, max(left, 0.05), self._watch, name)

    def leave(self, name):
        if self.members.pop(name, None) is not None:
            self.rebalance(6.0)
            self._complete()

    def _known(self, name, generation):
        if name not in self.members:
            raise UnknownMemberIdError
        if generation != self.generation:
            raise IllegalGenerationError
        self.members[name].seen = self.loop.now

    def heartbeat(self, name, generation):
        self._known(name, generation)
        if self._preparing:
            raise RebalanceInProgressError

    def commit(self, name, generation, offsets):
        """Store offsets with their metadata. The present generation may commit while the group prepares the next."""
        self._known(name, generation)
        self.offsets.update(offsets)
        self.on_offsets(offsets)
