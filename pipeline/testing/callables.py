"""The promises that can be checked on any function from a history to a request body."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from pipeline.rules import Violation, validate
from pipeline.testing.promises import ConformanceError, Promise, values_differ

Mend: TypeAlias = Callable[[list[Any]], bytes | str | dict[str, Any]]
"""From a list of messages to a request body: its JSON, or the object."""


def _messages(body: Any) -> list[Any]:  # noqa: ANN401  a decoded body
    messages = body["messages"]
    assert isinstance(messages, list)  # noqa: S101  what has no list of messages is not read again by this
    return messages


class CallableKit:
    """The promises of a function that mends histories; each method checks one, ``check`` all of a broken history.

    Bodies are judged by ``rules``, the rules of a target or a function of one's own. ``again`` takes the history out of
    a body, for the check that mending it once more changes nothing; None leaves that check out.
    """

    def __init__(
        self,
        mend: Mend,
        *,
        rules: str | Callable[[dict[str, Any]], list[Violation]] = "anthropic",
        model: str | None = None,
        again: Callable[[Any], list[Any]] | None = _messages,
    ) -> None:
        self._mend = mend
        self._rules = rules
        self._model = model
        self._again = again
        self.name = getattr(mend, "__name__", type(mend).__name__)

    def check(self, history: list[Any]) -> dict[str, Any]:
        """Every promise that applies to a history, healthy or not; the body it makes.

        Raises:
            ConformanceError: the first promise that does not hold.
        """
        self.repeatable(history)
        self.idempotent(history)
        return self.valid(history)

    def valid(self, history: list[Any]) -> dict[str, Any]:
        """The rules accept the body.

        Raises:
            ConformanceError: a hard violation.
        """
        body = self._body(history)
        found = validate(body, self._rules, self._model) if isinstance(self._rules, str) else self._rules(body)
        for violation in found:
            if violation.severity == "hard":
                raise ConformanceError("valid", self.name, violation.path, f"{violation.message} [{violation.rule}]")
        return body

    def repeatable(self, history: list[Any]) -> None:
        """The same history gives the same body, and is not changed by the call.

        Raises:
            ConformanceError: what differs.
        """
        given = copy.deepcopy(history)
        once = _decoded(self._mend(given))
        self._same("repeatable", given, history, "the history was changed")
        self._same("repeatable", self._body(history), once, "the second call")

    def idempotent(self, history: list[Any]) -> None:
        """The body's history, mended again, makes the same body.

        Raises:
            ConformanceError: what differs.
        """
        if self._again is not None:
            once = self._body(history)
            self._same("idempotent", self._body(self._again(once)), once, "the second time")

    def healthy(self, history: list[Any]) -> None:
        """A history with nothing to mend comes out as it is.

        Raises:
            ConformanceError: what differs.
        """
        if self._again is not None:
            self._same("healthy", self._again(self._body(history)), history, "the history")

    def _body(self, history: list[Any]) -> dict[str, Any]:
        return _decoded(self._mend(copy.deepcopy(history)))

    def _same(self, promise: Promise, found: object, wanted: object, what: str) -> None:
        differs = values_differ(found, wanted)
        if differs:
            raise ConformanceError(promise, self.name, differs[0], f"{what}: {differs[1]}")


def _decoded(body: bytes | str | dict[str, Any]) -> dict[str, Any]:
    decoded = body if isinstance(body, dict) else json.loads(body)
    if not isinstance(decoded, dict):
        raise TypeError(f"a request body is a JSON object, not {type(decoded).__name__}")
    return decoded
