"""A client without a session: it keeps the body of its requests, and heals it."""

from __future__ import annotations

import copy
import json
from typing import Any

from mock_provider.client_shapes import PARAMS, SHAPES, Entry
from mock_provider.parties import PARTIES

import reknit
from reknit.pipeline.fixes import Fix


class BodyAgent:
    """A client without a ``Session``: it keeps the body that was healed, and continues from it.

    Attributes:
        fixes: of all healings.
    """

    remembers = False

    def __init__(self, party: str, tools: list[str], system: str, params: Entry | None = None) -> None:
        self._party = PARTIES[party]
        self._shape = SHAPES[self._party.shape]
        given = copy.deepcopy({**PARAMS.get(party, {}), **(params or {})})
        self._body = self._shape.head(self._party, system, tools, given)
        self._body.setdefault(self._shape.turns, [])
        self.fixes: list[Fix] = []
        self._sent = b""
        self._said_since: list[Entry] = []

    @property
    def entries(self) -> list[Entry]:
        return [each for each in self._body[self._shape.turns] if each.get("role") != "system"]

    def say(self, *entries: Entry) -> None:
        self._body[self._shape.turns] += copy.deepcopy(list(entries))
        self._said_since += copy.deepcopy(list(entries))

    def rewrite(self, entries: list[Entry]) -> None:
        """Replace the history, as a client that edits it does."""
        head = [each for each in self._body[self._shape.turns] if each.get("role") == "system"]
        self._body[self._shape.turns] = head + copy.deepcopy(entries)

    def configure(self, *, tools: list[str], system: str, params: Entry | None = None) -> None:
        turns = self._body[self._shape.turns]
        known = {"model", "modelId", "system", "tools", "toolConfig", "instructions", "systemInstruction", "messages"}
        kept = {name: value for name, value in self._body.items() if name not in {*known, self._shape.turns}}
        self._body = self._shape.head(self._party, system, tools, {**kept, **(params or {})})
        self._body[self._shape.turns] = turns

    def declare(self, tool: Entry) -> None:
        """Declare a tool in the shape's own form."""
        self._body["tools"].append(tool)

    def request(self) -> bytes:
        self._sent, self._said_since = json.dumps(self._body, ensure_ascii=False).encode(), []
        return self._sent

    def refused(self, status: int, error: Any, attempt: int) -> bytes | None:
        """Return the next request: the refused one, healed, with the entries since. None if it is not healed."""
        model = self._party.model
        done = reknit.heal(self._sent, self._party.target, status=status, error=error, model=model, attempt=attempt)
        if done is None:
            return None
        self.fixes += done.fixes
        self._body = json.loads(done.body)
        self._body[self._shape.turns] += self._said_since
        return self.request()

    def switch(self, party: str) -> None:
        """Send the next requests to another party of the same shape."""
        self._party = PARTIES[party]
        if "model" in self._body:
            self._body["model"] = self._party.model
