"""A client of the pipeline: its turns and refusals are records, and a stage publishes its requests."""

from __future__ import annotations

import copy
import json
from typing import Any

from mock_provider.client_shapes import PARAMS, SCHEMA, Entry
from mock_provider.parties import PARTIES
from stage_runs import records, restored

from reknit.pipeline.fixes import Fix
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS


class TopicAgent:
    """A client whose history is a log.

    Attributes:
        fixes: empty; those of the pipeline are records.
        letters: how many records became dead letters.
    """

    restarts = False

    def __init__(self, party: str, tools: list[str], system: str, params: Entry | None = None) -> None:
        self._party = PARTIES[party]
        self._params = copy.deepcopy({**PARAMS.get(party, {}), **(params or {})})
        self._entries: list[Entry] = []
        self._stage, self._kept, self._offset = TurnsStage(Defaults()), {}, 0
        self._request: Any = None
        self._reports, self._is_stale = 0, False
        self.fixes: list[Fix] = []
        self.letters = 0
        self._open(tools, system, targets=[self._party.target], model=self._party.model)

    def _open(self, tools: list[str], system: str, **more: Any) -> None:
        self._tools = [{"name": name, "input_schema": SCHEMA} for name in tools]
        self._take({"type": "session.opened", "system": system, "tools": self._tools, "params": self._params, **more})

    def _take(self, value: Entry) -> list[Any]:
        """Process a record; return its outputs."""
        found = self._stage.process(records([value], first=self._offset))
        self._offset += 1
        self._kept |= found.changes
        self.letters += sum(each.topic == DEAD_LETTERS for each in found.outputs)
        requests = [each for each in found.outputs if each.topic == PROVIDER_REQUESTS]
        if requests:
            self._request, self._is_stale = requests[-1], False
        if self.restarts:
            self._stage = restored(TurnsStage(Defaults()), self._kept)
        return requests

    @property
    def entries(self) -> list[Entry]:
        return self._entries

    def say(self, *entries: Entry) -> None:
        before = self._request
        for entry in copy.deepcopy(list(entries)):
            self._entries.append(entry)
            self._take({"type": "turn.appended", "message": entry})
        self._is_stale = self._request is before

    def rewrite(self, entries: list[Entry]) -> None:
        """Replace the history, as a client that edits it does."""
        self._entries = copy.deepcopy(entries)
        self._take({"type": "history.restored", "messages": self._entries})
        self._is_stale = True

    def configure(self, *, tools: list[str], system: str, params: Entry | None = None) -> None:
        self._params = {**self._params, **(params or {})}
        self._open(tools, system)
        self._is_stale = True

    def declare(self, tool: Entry) -> None:
        """Declare a tool in the shape's own form."""
        self._take({"type": "session.opened", "tools": [*self._tools, tool]})

    def request(self) -> bytes:
        """Return the request that was published last. What only changes settings or history publishes none."""
        if self._is_stale:
            self._take({"type": "request.wanted"})
        return self._request.value

    def refused(self, status: int, error: Any, attempt: int) -> bytes | None:
        """Report a refusal, each attempt in two records as a log may have it; return the healed request, or None."""
        del attempt  # the id of the report tells attempts apart
        self._reports += 1
        answered = {
            "type": "provider.answered",
            "request_id": dict(self._request.headers)["request-id"].decode(),
            "status": status,
            "body": json.dumps(error),
            "id": f"report-{self._reports}",
        }
        healed = self._take(answered)
        again = self._take(answered)
        if again:
            raise AssertionError("a report that came twice has two healed requests")
        return healed[-1].value if healed else None

    def switch(self, party: str) -> None:
        """Send the next requests to another party, with the parameters of its shape."""
        before, self._party = self._party, PARTIES[party]
        if before.shape != self._party.shape:
            self._params = copy.deepcopy(PARAMS.get(party, {}))
        opened = {"targets": [self._party.target], "model": self._party.model, "params": self._params}
        self._take({"type": "session.opened", **opened})
        self._is_stale = True


class RestartedTopicAgent(TopicAgent):
    """The same with a worker that is restarted after each record."""

    restarts = True
