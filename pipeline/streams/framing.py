"""Byte framing: records that may end inside an event, put together again to whole lines."""

from __future__ import annotations

from msgspec import Struct

MOST_TAIL = 64 * 1024 * 1024


class Tail(Struct):
    """What has come of a line that has not ended: its pieces and their size, or that it was given up as too long."""

    pieces: list[bytes] = []
    size: int = 0
    discarding: bool = False

    def push(self, data: bytes) -> tuple[list[bytes], int]:
        """Take bytes; return the pieces of the lines that are now whole, and how many lines were given up.

        A line longer than 64 MiB is given up: the rest of it is passed over up to its newline. Pieces are joined only
        when their line ends, so a long line in small records costs its length and not its square.
        """
        end = data.rfind(b"\n") + 1
        lost = 0
        whole: list[bytes] = []
        if end:
            start = 0
            if self.discarding:
                start = data.find(b"\n") + 1
                self.discarding = False
            whole = [*self.pieces, data[start:end]]
            self.pieces, self.size = [], 0
        rest = data[end:]
        if rest and not self.discarding:
            if self.size + len(rest) > MOST_TAIL:
                self.pieces, self.size, self.discarding = [], 0, True
                lost = 1
            else:
                self.pieces.append(rest)
                self.size += len(rest)
        return whole, lost

    def flush(self) -> bytes:
        """Take out what is left, at the end of a run."""
        left = b"".join(self.pieces)
        self.pieces, self.size, self.discarding = [], 0, False
        return left
