"""Run a scripted session: a client and the provider take turns, and refusals are healed as a sender would do it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Protocol

from mock_provider.client_shapes import SHAPES, Entry
from mock_provider.faults import FAULTS
from mock_provider.parties import PARTIES
from mock_provider.provider import Answered, Provider
from mock_provider.scripts import Script
from msgspec import Struct, field

from reknit.pipeline.fixes import Fix

# More requests than this for one answer are a loop.
_MOST_SENT = 60
_HTTP_OK = 200
_REFUSED = 400


class Agent(Protocol):
    """A client: its history, its requests, and how it takes a refusal."""

    fixes: list[Fix]

    @property
    def entries(self) -> list[Entry]: ...
    def say(self, *entries: Entry) -> None: ...
    def rewrite(self, entries: list[Entry]) -> None: ...
    def configure(self, *, tools: list[str], system: str, params: Entry | None = None) -> None: ...
    def declare(self, tool: Entry) -> None: ...
    def request(self) -> bytes: ...
    def refused(self, status: int, error: Any, attempt: int) -> bytes | None: ...
    def switch(self, party: str) -> None: ...


class Run(Struct, kw_only=True):
    """A session that runs, which faults change.

    Attributes:
        provider: with its ledger.
        agent: the client.
        party: that requests go to.
        tools: that are declared.
        system: the system prompt.
        media: of the user's next entry.
        on_answer: change the entries of the next answer before the client has them.
        log: the texts, calls and results that a request must still have.
        healings: the bodies before and after each healing.
        retried: the numbers in the ledger of plain retries.
        is_alive: False after a refusal that was not healed.
    """

    provider: Provider
    agent: Agent
    party: str
    tools: list[str]
    system: str = "You are an agent."
    media: list[Entry] = field(default_factory=list)
    on_answer: list[Callable[[list[Entry]], None]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    healings: list[tuple[bytes, bytes]] = field(default_factory=list)
    retried: set[int] = field(default_factory=set)
    is_alive: bool = True

    @property
    def refusals(self) -> list[Answered]:
        """Return the refusals that were not followed by a plain retry."""
        ledger = self.provider.ledger
        return [each for at, each in enumerate(ledger) if each.name and at + 1 not in self.retried]


def run_script(script: Script, make_agent: Callable[..., Agent]) -> Run:
    """Run a session to its end, or to a refusal that is not healed."""
    agent = make_agent(script.party, script.tools, "You are an agent.", script.params)
    run = Run(provider=Provider(script.name), agent=agent, party=script.party, tools=list(script.tools))
    for number, calls in enumerate(script.rounds):
        if run.is_alive:
            _run_round(run, script, number, calls)
    return run


def _run_round(run: Run, script: Script, number: int, calls: int) -> None:
    _inject(run, script, number, 0)
    shape = SHAPES[PARTIES[run.party].shape]
    text = f"Question {number} [{calls} calls]"
    run.agent.say(shape.user(text, run.media))
    run.log.append(text)
    run.media = []
    for step in range(calls + 1):
        if step:
            _inject(run, script, number, step)
        answered = _send(run, is_late=script.late)
        if answered is None:
            run.is_alive = False
            return
        entries = copy.deepcopy(shape.entries(answered.body))
        for change in run.on_answer:
            change(entries)
        run.on_answer = []
        called = [call for entry in entries for call in shape.calls(entry)]
        content = f"content {number}.{step}"
        results = shape.results(called, content) if called else []
        run.agent.say(*entries, *results)
        said = f"Answer {_count_answers(run)}."
        run.log += [content] if called else [said] if said in json.dumps(entries) else []
        if not called:
            return


def _count_answers(run: Run) -> int:
    return sum(not each.name for each in run.provider.ledger)


def _inject(run: Run, script: Script, number: int, step: int) -> None:
    for fault in script.faults:
        if (fault.round, fault.step) == (number, step):
            FAULTS[fault.name](run, **fault.given)


def _send(run: Run, *, is_late: bool) -> Answered | None:
    """Send a request until it is accepted. None if a refusal is not healed."""
    attempt = 1
    for _ in range(_MOST_SENT):
        sent = run.agent.request()
        answered = run.provider.receive(run.party, sent)
        if not answered.name:
            return answered
        has_spoken = is_late and not run.healings and not _may_pass(answered, attempt)
        if has_spoken:
            run.agent.say(SHAPES[PARTIES[run.party].shape].user("Are you there?", []))
            is_late = False
        status = _REFUSED if answered.status == _HTTP_OK else answered.status
        healed = run.agent.refused(status, answered.body, attempt)
        if healed is None and _may_pass(answered, attempt):
            run.retried.add(len(run.provider.ledger))
            attempt += answered.name != "busy"
            continue
        if healed is None and not has_spoken:
            return None
        attempt = 1
        if healed is None:  # the request of the newer turn follows
            continue
        run.healings.append((sent, healed))
    return None


def _may_pass(answered: Answered, attempt: int) -> bool:
    """Return True if a sender sends the same request again: the provider is busy, or a download took too long."""
    return answered.name == "busy" or (answered.name == "download_timeout" and attempt == 1)
