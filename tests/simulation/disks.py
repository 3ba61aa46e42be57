"""The engine's seam to stores on disk. A killed process loses its last writes, and bits may flip while it is down.

Reknit writes to RocksDB without its log, so a killed process loses what was not flushed, always from the end.
"""

from __future__ import annotations

from types import SimpleNamespace

from reknit.pipeline.engine.stores import StoreError


class Directory:
    """The content of a directory: one state for each write that is not flushed yet."""

    def __init__(self):
        self.versions = [({}, None)]
        self.damaged = self.full = False

    def make_room(self):
        self.full = False

    def lose(self, writes):
        self.versions = self.versions[: max(1, len(self.versions) - writes)]


class Machine:
    """The directories of one worker's machine, by partition."""

    def __init__(self, happened):
        self.directories, self._happened = {}, happened

    def open(self, _path, belonging, offsets):
        key = (belonging.changelog, belonging.partition)
        directory = self.directories.setdefault(key, Directory())
        if directory.damaged:
            self._happened["damaged store"] += 1
            del self.directories[key]  # the engine deletes it
            raise StoreError("damaged", "block checksum mismatch")
        progress = directory.versions[-1][1]
        if progress is not None and progress.offset not in offsets:
            self._happened["store outside of its log"] += 1
            del self.directories[key]
            raise StoreError("outside", "the changelog does not reach to where it was read")
        self._happened["opened store"] += progress is not None
        return SimDisk(directory, self._happened)

    def crash(self, writes):
        for directory in self.directories.values():
            directory.lose(writes)


class SimDisk:
    sessions = size = 0

    def __init__(self, directory, happened):
        self._directory, self._happened = directory, happened
        self._records, self.progress = directory.versions[-1]
        self._batch = {}

    def put(self, session, key, value):
        self._batch[session, key] = value

    def read(self, session):
        if self._directory.damaged:
            self._happened["damaged store"] += 1
            raise StoreError("damaged", "block checksum mismatch")
        return {key: value for (of, key), value in self._records.items() if of == session}

    def write(self, offset, position, state_format, mark=None, *, erase=False):
        if self._directory.full:
            raise StoreError("failed", "IO error: No space left on device")
        changed = {**self._records, **self._batch}
        self._records = {key: value for key, value in changed.items() if value is not None}
        self.progress = SimpleNamespace(offset=offset, position=position, state_format=state_format, mark=mark)
        self._batch = {}
        self._directory.versions = [*self._directory.versions[-8:], (self._records, self.progress)]

    def erase_deleted(self):
        pass

    def close(self):
        self._directory.versions = self._directory.versions[-1:]
