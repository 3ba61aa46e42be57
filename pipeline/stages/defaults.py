"""What holds for a session that did not say otherwise."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from pipeline.errors import InputError
from pipeline.model import Policy
from pipeline.session import Session
from pipeline.session.arguments import with_mends
from pipeline.stages.limits import Limits
from pipeline.streams.cascade.speech import Speech
from pipeline.text.redaction import MARKER, SOURCE_ROOTS
from topics import DAY_MS, MARKER_DAYS
from topics.records import PolicyChange, SessionOpened

# Parameters by which a request goes on from what a provider keeps.
_CHAINS = ("previous_response_id", "conversation")


# What becomes of a session's later records after one that could not be processed.
OnDeadLetter: TypeAlias = Literal["go-on", "follow", "park", "stop"]


class Defaults(Struct, frozen=True, kw_only=True):
    """The worker's defaults for sessions.

    ``on_dead_letter`` says what becomes of a session's later records after one that could not be processed: they are
    processed, follow it into the dead letters until the history is restored, or wait until the session is released, so
    that a hole never becomes a wrong history; or the worker stops there. So many records and bytes wait at most.
    ``limits`` are what tenants may have. ``source`` is whose events those are that do not say. ``marker_ms`` is how
    long it is remembered that a session is over. ``redact_roots`` are the paths that a planner that speaks text only
    must not tell, and ``redact_marker`` what stands for them.
    """

    targets: tuple[str, ...] = ("anthropic",)
    model: str | None = None
    params: dict[str, Raw] = {}
    system: str | None = None
    tools: tuple[Raw, ...] = ()
    policy: Policy = Policy()
    on_dead_letter: OnDeadLetter = "go-on"
    parked_records: int = 1_000
    parked_bytes: int = 8 << 20
    limits: Limits = Limits()
    source: str = "claude-cli"
    marker_ms: int = MARKER_DAYS * DAY_MS
    redact_roots: tuple[str, ...] = SOURCE_ROOTS
    redact_marker: str = MARKER

    def session(self) -> Session:
        """A session that has said nothing yet."""
        return Session(
            self.targets, self.policy, system=self.system, tools=self._tools(), model=self.model, params=self.params
        )

    def speech(self) -> Speech:
        """What a planner's text is to become, in a session that has said nothing yet."""
        names = self.session().tool_names
        return Speech(model=self.model, tools=names or None, roots=self.redact_roots, marker=self.redact_marker)

    def changes(self, opened: SessionOpened, policy: Policy) -> dict[str, Any]:
        """What a session is to change, as ``Session.configure`` takes it.

        A field that is absent stays as it is; null goes back to the default. ``policy`` is the one in force.

        Raises:
            InputError: a system prompt or tools that cannot be read, or parameters that lead outside of the request.
        """
        changes: dict[str, Any] = {}
        for name, default in (("targets", self.targets), ("model", self.model), ("params", self.params)):
            given = getattr(opened, name)
            if given is not UNSET:
                changes[name] = default if given is None else given
        refuse_chained(changes.get("params", {}))
        if opened.system is not UNSET:
            system = _decoded(opened.system, "system")
            changes["system"] = self.system if system is None else system
        if opened.tools is not UNSET:
            tools = _decoded(opened.tools, "tools")
            changes["tools"] = self._tools() if tools is None else tools
        if opened.policy is not UNSET:
            changes["policy"] = self.policy if opened.policy is None else _changed(policy, opened.policy)
        return changes

    def _tools(self) -> list[Any]:
        return [msgspec.json.decode(tool) for tool in self.tools]


def refuse_chained(params: Container[str]) -> None:
    """Refuse parameters by which a request goes on from what the provider keeps.

    Raises:
        InputError: there is one.
    """
    for name in chains_in(params):
        message = "a request that goes on from one that the provider keeps cannot be made again from the log"
        raise InputError("chained", message, path=f"params.{name}")


def chains_in(params: Container[str]) -> list[str]:
    """The parameters by which a request goes on from what the provider keeps."""
    return [name for name in _CHAINS if name in params]


def _changed(policy: Policy, change: PolicyChange) -> Policy:
    given = {name: value for name, value in structs.asdict(change).items() if value is not UNSET}
    if "mend" in given:
        given["mend"] = with_mends(policy.mend, given["mend"])
    return structs.replace(policy, **given)


def _decoded(value: Raw, path: str) -> Any:  # noqa: ANN401  whatever JSON holds
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not_json", f"not JSON: {error}", path=path) from error
