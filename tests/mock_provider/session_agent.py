"""A client with a session, which remembers what was refused."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any, ClassVar

from mock_provider.client_shapes import PARAMS, SCHEMA, Entry
from mock_provider.parties import PARTIES

from reknit.pipeline import Session
from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix


class SessionAgent:
    """A client that keeps its history in a ``Session``.

    Attributes:
        session: with its memory.
        policy: of the session.
        fixes: of the healings, each of them once.
    """

    policy: ClassVar[Entry | None] = None

    def __init__(self, party: str, tools: list[str], system: str, params: Entry | None = None) -> None:
        self._party = PARTIES[party]
        self._params = copy.deepcopy({**PARAMS.get(party, {}), **(params or {})})
        self._tools = [_declared(name) for name in tools]
        self._entries: list[Entry] = []
        self.fixes: list[Fix] = []
        self._reports = 0
        self.session = Session(
            [self._party.target],
            model=self._party.model,
            system=system,
            tools=self._tools,
            params=self._params,
            policy=self.policy,
        )

    @property
    def entries(self) -> list[Entry]:
        return self._entries

    def say(self, *entries: Entry) -> None:
        for entry in copy.deepcopy(list(entries)):
            self._entries.append(entry)
            self.session.append(entry)

    def rewrite(self, entries: list[Entry]) -> None:
        """Replace the history, as a client that edits it does."""
        self._entries = copy.deepcopy(entries)
        self.session.replace(self._entries)

    def configure(self, *, tools: list[str], system: str, params: Entry | None = None) -> None:
        self._params = {**self._params, **(params or {})}
        self._tools = [_declared(name) for name in tools]
        self.session.configure(tools=self._tools, system=system, params=self._params)

    def declare(self, tool: Entry) -> None:
        """Declare a tool in the shape's own form. A session takes no tool without a schema."""
        with suppress(InputError):
            self.session.configure(tools=[*self._tools, tool])

    def request(self) -> bytes:
        made = self.session.request(self._party.target)
        if made.body is None:
            raise AssertionError(f"the session makes no request: {made.violations}")
        return made.body

    def refused(self, status: int, error: Any, attempt: int) -> bytes | None:
        """Return the next request after a refusal; None if it is not healed."""
        del attempt  # the session counts them
        self._reports += 1
        done = self.session.refused(
            self._party.target, status=status, error=error, request_id=f"request-{self._reports}"
        )
        if done is None:
            return None
        known = {(fix.code, fix.path, fix.detail) for fix in self.fixes}
        self.fixes += [fix for fix in done.fixes if (fix.code, fix.path, fix.detail) not in known and _is_healing(fix)]
        return done.body

    def switch(self, party: str) -> None:
        """Send the next requests to another party, with the parameters of its shape."""
        before, self._party = self._party, PARTIES[party]
        if before.shape != self._party.shape:
            self._params = copy.deepcopy(PARAMS.get(party, {}))
        self.session.configure(targets=[self._party.target], model=self._party.model, params=self._params)


class Unhealed(SessionAgent):
    """A client whose policy switches healing off."""

    policy: ClassVar[Entry | None] = {"heal": "off"}


class RestartedAgent(SessionAgent):
    """A client that loads its session from its state before each request."""

    def __init__(self, party: str, tools: list[str], system: str, params: Entry | None = None) -> None:
        super().__init__(party, tools, system, params)
        self._records: dict[int, bytes] = {}

    def request(self) -> bytes:
        self._records |= dict(self.session.take_segments())
        head, numbers = self.session.head(), self.session.segments
        self.session = Session.load(head, [self._records[number] for number in numbers])
        return super().request()


def _declared(name: str) -> Entry:
    return {"name": name, "input_schema": SCHEMA}


def _is_healing(fix: Fix) -> bool:
    return fix.code.startswith("healed_")
