"""The worker's defaults for sessions, and the changes that a session makes to them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, structs, to_builtins

from reknit.pipeline.errors import InputError
from reknit.pipeline.policy import Endpoint, Policy
from reknit.pipeline.providers.cascade.stream.speech import OutputFilters
from reknit.pipeline.session import Session
from reknit.pipeline.session.arguments import with_repair_modes
from reknit.pipeline.session.scaled import scale_from
from reknit.pipeline.stages.base import STATE_FORMATS
from reknit.pipeline.stages.tenants import Limits
from reknit.pipeline.text.redaction import MARKER, SOURCE_ROOTS
from reknit.topics import DAY_MS, MARKER_DAYS
from reknit.topics.records import PolicyChange, SessionOpened

# The first format of state in which a policy may have endpoints: builds of earlier formats refuse a policy with members
# that they do not know.
ENDPOINTS = 3

# Parameters by which a request continues from state that the provider keeps.
_CHAINS = ("previous_response_id", "conversation")


# The treatment of a session's later records after one that could not be processed.
OnDeadLetter: TypeAlias = Literal["go-on", "follow", "park", "stop"]


class Defaults(Struct, frozen=True, kw_only=True):
    """The worker's defaults for sessions.

    ``on_dead_letter`` is the treatment of a session's later records after one that could not be processed: they are
    processed, follow it into the dead letters until the history is restored, or wait until the session is released, so
    that a gap never becomes a wrong history; or the worker stops. ``parked_records`` and ``parked_bytes`` limit the
    waiting ones. ``limits`` are the limits of tenants. ``source`` is the source of events that do not name one.
    ``marker_ms`` is how long ended sessions are remembered. ``redact_roots`` are the paths that a text-only planner
    must not reveal, and ``redact_marker`` replaces them. ``withdraw``: withdraw a published request that the log
    answers. ``endpoints``: the state may hold the endpoints of policies. ``can_scale``: records
    come with scaled images, where their sessions' policies ask for these.
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
    withdraw: bool = False
    endpoints: bool = True
    can_scale: bool = True

    def session(self, state_format: int = STATE_FORMATS[-1]) -> Session:
        """A session that has said nothing yet; its state is written in a format."""
        return Session(
            self.targets,
            self._held(self.policy),
            system=self.system,
            tools=self._tools(),
            model=self.model,
            params=self.params,
            state_format=state_format,
            scale=scale_from({}) if self.can_scale else None,
        )

    def speech(self) -> OutputFilters:
        """Return the output filters of a planner's text, for a session without settings of its own."""
        names = self.session().tool_names
        return OutputFilters(model=self.model, tools=names or None, roots=self.redact_roots, marker=self.redact_marker)

    def wrapped_tools(self) -> frozenset[str]:
        """The names of the tools that accept no object, for a session without settings of its own."""
        return self.session().wrapped_tools

    def changes(self, opened: SessionOpened, policy: Policy) -> dict[str, Any]:
        """Return the changes of a session, as arguments of ``Session.configure``.

        An absent field keeps its value; null restores the default. ``policy`` is the one in force.

        Raises:
            InputError: a system prompt or tools that cannot be read, or parameters that refer to state outside of the
                request.
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
            changes["policy"] = self._held(self.policy if opened.policy is None else _changed(policy, opened.policy))
        return changes

    def _held(self, policy: Policy) -> Policy:
        """Return a policy as the state may hold it."""
        return policy if self.endpoints else structs.replace(policy, endpoints={})

    def _tools(self) -> list[Any]:
        return [msgspec.json.decode(tool) for tool in self.tools]


def refuse_chained(params: Container[str]) -> None:
    """Refuse parameters by which a request continues from state that the provider keeps.

    Raises:
        InputError: there is such a parameter.
    """
    for name in chains_in(params):
        message = "a request that goes on from one that the provider keeps cannot be made again from the log"
        raise InputError("chained", message, path=f"params.{name}")


def chains_in(params: Container[str]) -> list[str]:
    """Return the parameters by which a request continues from state that the provider keeps."""
    return [name for name in _CHAINS if name in params]


RESET: Final = "reset"
"""The value of policy ``heal`` that no session keeps: it forgets what was refused before."""


def resets_healing(opened: SessionOpened) -> bool:
    """Return True if a session forgets what providers refused."""
    return opened.policy is not UNSET and opened.policy is not None and opened.policy.heal == RESET


def _changed(policy: Policy, change: PolicyChange) -> Policy:
    given = {name: value for name, value in structs.asdict(change).items() if value is not UNSET}
    if given.get("heal") == RESET:
        del given["heal"]
    if "mend" in given:
        given["mend"] = with_repair_modes(policy.mend, given["mend"])
    if "endpoints" in given:
        given["endpoints"] = policy.endpoints | msgspec.convert(to_builtins(given["endpoints"]), dict[str, Endpoint])
    return structs.replace(policy, **given)


def _decoded(value: Raw, path: str) -> Any:  # noqa: ANN401  whatever JSON holds
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not_json", f"not JSON: {error}", path=path) from error
