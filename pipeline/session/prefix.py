"""Changes of the settled prefix of a session's requests, other than by its callers.

Settled bytes never change, with these exceptions: media that a limit turns into lines of text, and exchanges that are
cut because the history is too long. Whatever is bound to the prefix of a request (a cache, reasoning whose signature
covers it) is void after such a change.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class PrefixChange(Struct, frozen=True, array_like=True):
    """From message ``first`` on, the requests of a target are not what they were before message ``at`` arrived.

    ``target`` is "" for all targets of the session. Both messages are counted in the input. ``reason`` is the value of
    `prefix-reset`.
    """

    target: str
    first: int
    at: int
    reason: str


def reasons_by_target(changes: Iterable[PrefixChange], names: Iterable[str], sent: int) -> dict[str, str]:
    """Return the targets whose first ``sent`` messages have changed, each with the first reason."""
    changed = [change for change in changes if change.first < sent]
    found: dict[str, str] = {}
    for name in names:
        for change in changed:
            if change.target in {"", name}:
                found.setdefault(name, change.reason)
    return found
