"""Clients that hold conversations through a gateway, and the outcome of each exchange."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import Counter
from http import HTTPStatus

from gateway_faults import BROKEN, EXACT, LEFT, Conversations, FaultClient, is_right
from gateway_topics import CUT, STOPPED, WHOLE, Exchange
from gateway_topics import LEFT as CLIENT_LEFT
from msgspec import structs

# Clients without a gateway try again after this time. 200 of them must not use the cores that its start needs.
_PAUSE = 0.5
# A gateway notices and stores within this time that a client has left, also on a busy machine.
_LEFT_SECONDS = 30.0
# How the run of an exchange ends in the topics, by the outcome.
_ENDS = {EXACT: {WHOLE}, BROKEN: {CUT}, LEFT: {CLIENT_LEFT}}


class Load:
    """Conversations over a number of connections.

    Attributes:
        done: exchanges that have ended.
        exchanges: those that the gateway gave an id, in the order of their ends.
        wrong: those in which a client got something else than its fault allows.
        outcomes: counts by kind of outcome and class of status.
        hit: exchanges during which the gateway was killed.
        refusals: those whose client got the provider's refusal of a signature, which the gateway must heal.
        is_over: no exchange follows.
    """

    def __init__(self, provider, gateway, http, *, count, seed, turns):
        self.done = self.hit = self.refusals = 0
        self.exchanges, self.wrong, self.outcomes = [], [], Counter()
        self.is_over = False
        # Exchanges whose clients left since the last kill: when, and their places in the list.
        self._left = []
        self._provider = provider
        self._client = FaultClient(http, gateway, pause=_PAUSE)
        self._conversations = enumerate(Conversations(seed).plan(count, turns))
        self._progress = asyncio.Condition()

    @property
    def invalid(self):
        """Bodies that broke a hard rule at the provider."""
        return self._provider.invalid

    @property
    def refused(self):
        """How many signatures the provider refused."""
        return len(self._provider.refused)

    @property
    def refused_again(self):
        """How many refusals were of a signature that had been refused before."""
        return self._provider.refused_again

    async def run(self, connections, seconds):
        """Hold all conversations; none begins after ``seconds``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            await asyncio.gather(*(self._converse(lambda: loop.time() < end) for _ in range(connections)))
        finally:
            self.is_over = True
            async with self._progress:
                self._progress.notify_all()

    async def until(self, count):
        """Wait for a number of exchanges, or the end."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.done >= count or self.is_over)

    def note_kill(self):
        """Note that the gateway is killed now: of an exchange whose client has just left, perhaps nothing is stored."""
        since = time.monotonic() - _LEFT_SECONDS
        for at, place in self._left:
            if at >= since:
                self.exchanges[place] = structs.replace(self.exchanges[place], is_hit=True)
        self._left.clear()

    async def _converse(self, may_begin):
        while may_begin():
            for number, planned in itertools.islice(self._conversations, 1):
                # The provider needs no bodies.
                self._provider.plans |= {each.number: structs.replace(each, body=b"") for each in planned}
                for each in planned:
                    self._note(f"conversation {number}", each, await self._client.exchange(each))
                    async with self._progress:
                        self._progress.notify_all()
                break
            else:
                return

    def _note(self, session, planned, outcome):
        status, sent = self._provider.sent.pop(planned.number, (0, b""))
        body = self._provider.bodies.pop(planned.number, None)
        if not is_right(planned, outcome, (status, sent)):
            self.wrong.append(f"exchange {planned.number} ({planned.fault}): {outcome}")
        self.done += 1
        self.hit += outcome.is_hit
        self.refusals += outcome.status == HTTPStatus.BAD_REQUEST
        self.outcomes[outcome.kind, outcome.status // 100] += 1
        if outcome.request_id:
            if outcome.kind == LEFT:
                self._left.append((time.monotonic(), len(self.exchanges)))
            self.exchanges.append(exchange_of(session, planned, outcome, sent, body))


def exchange_of(session, planned, outcome, sent, body):
    is_whole = outcome.kind == EXACT
    ends = {*_ENDS.get(outcome.kind, ())}
    if outcome.kind == LEFT:
        ends.add(STOPPED)  # killed before it noticed
    if outcome.is_hit:
        ends |= {WHOLE, STOPPED} if is_whole else {WHOLE, CUT, CLIENT_LEFT, STOPPED}
    return Exchange(
        session=session,
        run=outcome.request_id,
        ends=frozenset(ends),
        digest=hashlib.sha256(outcome.data).hexdigest() if is_whole else "",
        begun=b"" if is_whole else outcome.data,
        # A provider whose client is to leave sends until it does.
        sent=None if is_whole or planned.expected == LEFT else sent,
        status=outcome.status,
        # A request that is sent again may be healed earlier.
        body=None if outcome.is_hit else body,
        texts=1 if is_whole and planned.fault in {"stream", "slow stream"} else None,
        is_hit=outcome.is_hit,
    )
