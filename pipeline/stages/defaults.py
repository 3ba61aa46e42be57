"""What holds for a session that did not say otherwise."""

from __future__ import annotations

from msgspec import Raw, Struct

from pipeline.model import Policy


class Defaults(Struct, frozen=True, kw_only=True):
    """The worker's defaults for sessions.

    ``quarantine``: after a record that could not be processed, the session's later ones follow it into the dead
    letters until its history is restored, so that a hole never becomes a wrong history. ``source`` is whose events
    those are that do not say.
    """

    targets: tuple[str, ...] = ("anthropic",)
    model: str | None = None
    params: dict[str, Raw] = {}
    system: Raw | None = None
    tools: Raw | None = None
    policy: Policy = Policy()
    quarantine: bool = False
    source: str = "claude-cli"
