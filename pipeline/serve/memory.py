"""The gateway's memory of all conversations, in one file."""

from __future__ import annotations

from pathlib import Path

from reknit.pipeline.serve.answered import AnsweredMemory
from reknit.pipeline.serve.refusals import RefusalMemory
from reknit.pipeline.serve.store import Store


class GatewayMemory:
    """The memories of refusals and of answered requests.

    Attributes:
        secret: of the gateway, for the keys of conversations.
        refusals: of providers.
        answered: requests that providers accepted, with their ends.

    Args:
        directory: as of ``Store``.

    Raises:
        InputError: ``state_dir_unusable``.
    """

    def __init__(self, directory: Path | None) -> None:
        self._store = Store(directory)
        self.secret = self._store.secret
        self.refusals = RefusalMemory(self._store)
        self.answered = AnsweredMemory(self._store)

    def close(self) -> None:
        self._store.close()
