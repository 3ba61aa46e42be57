"""A planner that takes text only (Windsurf's Cascade, and models reached through it): tools emulated in text.

A body is ``{"model", "system", "messages": [{"role", "content": TEXT}], …}``. The system slot holds the authoritative
preamble, the caller's environment first, then the system prompt; a call is a ``<tool_call>`` line of the assistant's,
a result a ``<tool_result tool_call_id="…">`` of the user's, in front of what the user says. The latest turn of the
user's that is no result has the one-line fallback before it. Request parameters that other APIs share go under
Anthropic's names; whoever passes the body on decides about them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.history.pieces import Piece
from pipeline.targets.base import Setting
from pipeline.targets.cascade.dialect import CascadeDialect
from pipeline.targets.cascade.head import NAME

__all__ = ["Cascade", "CascadeDialect"]


class Cascade:
    """The target ``cascade``."""

    name = NAME
    text = False
    tail_rule = "CAS-07"
    tail_rules = frozenset({"CAS-03", "CAS-07", "CAS-10", "CAS-11"})

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> CascadeDialect:
        """Get ready for a session."""
        return CascadeDialect(setting, system)
