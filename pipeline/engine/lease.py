"""The time until which the group certainly keeps this worker as a member, in one generation.

The coordinator counts a session from the last heartbeat that arrived. This worker only knows when it sent the last one
that was answered, which is earlier. So no other worker owns its partitions before that time plus the session. A worker
that was suspended or cut off for longer learns of its removal with its next answered heartbeat, but its lease ended
before. At-least-once delivery has no other fence for a former owner.

The thread of the group writes the lease, and the worker's loop reads it. Each assignment has a new one. A partition
keeps the lease of the assignment with which it was opened or resumed, also while it finishes its last batch.
"""

from __future__ import annotations


class Lease:
    """``until`` is in seconds of the monotonic clock; a lease without a heartbeat has no end."""

    def __init__(self, until: float = float("inf")) -> None:
        self.until = until
        self._has_ended = False

    def lasts(self, now: float) -> bool:
        """Return whether this worker may write at this time."""
        return now < self.until

    def renew(self, until: float) -> None:
        """Extend it, unless it has ended."""
        if not self._has_ended:
            self.until = max(self.until, until)

    def end(self) -> None:
        """End it now: the member joins the next generation, which may give its partitions to another worker."""
        self._has_ended, self.until = True, float("-inf")


NO_LEASE = Lease()
