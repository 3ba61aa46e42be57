"""Healing on the request path: a refused request is sent again without what the provider refused.

The client sees the accepted answer only. The refused values are remembered for the conversation: its later requests
have the same history, are sent without them, and keep the same beginning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec import structs

from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.healing.memory import NO_MEMORY, TargetMemory
from reknit.pipeline.healing.single import Healed, recall, try_remembered
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.received import Refusal
from reknit.pipeline.serve.refusals import RefusalMemory, without_sentences
from reknit.pipeline.serve.repair import Repaired, Repairs
from reknit.pipeline.serve.upstreams import Upstream

log = logging.getLogger("reknit.serve")


class Healer:
    """Heals one request, and remembers its refusals for the conversation.

    Args:
        memories: of all conversations.
        repairs: run large bodies in another process.
        endpoint: of the request.
        upstream: it limits the healings.
        key: returns the key of the conversation.
    """

    def __init__(
        self,
        memories: RefusalMemory,
        repairs: Repairs,
        *,
        endpoint: Endpoint,
        upstream: Upstream,
        key: Callable[[], bytes],
    ) -> None:
        self.most_healings = upstream.most_healings
        self._memories = memories
        self._repairs = repairs
        self._endpoint = endpoint
        self._key = key
        # As long as nothing was healed, a request costs nothing here.
        self._known = NO_MEMORY if memories.is_empty or not self.most_healings else memories.of(self._key())
        self._memory = structs.replace(self._known, count=0)

    @property
    def memory(self) -> TargetMemory:
        """The memory that the request was written by, without the provider's sentences, which may quote it."""
        if not self._memory.healings:
            return NO_MEMORY
        return without_sentences(self._memory)

    async def recall(self, done: Repaired, given: bytes) -> Repaired:
        """Return the result of repair without what earlier refusals of the conversation were about.

        Args:
            done: the result of repair.
            given: the body before it.
        """
        if self._memory == NO_MEMORY or done.outcome not in {"unchanged", "repaired"}:
            return done
        work = partial(recall, target=self._endpoint.target, memory=self._memory, model=self._endpoint.model)
        try:
            found, self._memory = await self._repairs.run(work, done.body or given)
        except Exception as error:  # noqa: BLE001  a fault of Reknit must not stop the request
            log.warning("earlier refusals were not applied: %s", error_name(error))
            return done
        if found is None:
            return done
        fixes = Counter(done.fixes) + Counter(fix.code for fix in found.fixes)
        return structs.replace(done, outcome="repaired", body=found.body, fixes=fixes)

    async def heal(self, refusal: Refusal, body: bytes) -> Healed | None:
        """Return a narrower request after a refusal; None if none is known.

        Args:
            refusal: of the provider.
            body: the request, without content encoding.
        """
        work = partial(
            try_remembered,
            target=self._endpoint.target,
            memory=self._memory,
            status=refusal.status,
            error=refusal.error,
            model=self._endpoint.model,
            limit=self.most_healings,
        )
        try:
            found, self._memory = await self._repairs.run(work, body)
        except ReknitError as error:
            log.info("a refusal was not healed: %s", error_name(error))
            return None
        except Exception as error:  # noqa: BLE001  a fault of Reknit must not hide the provider's answer
            log.warning("a refusal was forwarded without healing: %s", error_name(error))
            return None
        return found if isinstance(found, Healed) else None

    def keep(self) -> None:
        """Remember the healings for later requests of the conversation."""
        if self._memory != self._known and self._memory.healings:
            self._memories.keep(self._key(), self._memory)
