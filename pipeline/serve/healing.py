"""Healing on the request path: a refused request is sent again without what the provider refused.

The client sees the accepted answer only. The gateway keeps nothing of it, so the client's next request may be refused
for the same cause and healed again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import aiohttp
from aiohttp import hdrs

from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.healing.single import Healed, try_healing
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.repair import Repairs, decoded

log = logging.getLogger("reknit.serve")

# Bytes of a refusal that are read; a longer answer is no refusal in a sentence.
_MOST_ERROR_BYTES: Final = 64 * 1024
_REFUSED: Final = 400


class Refused:
    """The answer to one request, with what was read of it to look for a refusal.

    Attributes:
        answer: of the provider.
        begin: the bytes that were read already; the client gets them first.
    """

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.begin = b""
        self._is_whole = False

    async def read(self) -> bytes | None:
        """Return the answer's body without its content encoding; None if it is no error, or cannot be read."""
        if self.answer.status < _REFUSED:
            return None
        while len(self.begin) <= _MOST_ERROR_BYTES:
            piece = await self.answer.content.read(_MOST_ERROR_BYTES)
            if not piece:
                self._is_whole = True
                break
            self.begin += piece
        if not self._is_whole:
            return None
        return decoded(self.begin, self.answer.headers.get(hdrs.CONTENT_ENCODING, ""))


async def healed(refused: Refused, body: bytes, endpoint: Endpoint, repairs: Repairs) -> Healed | None:
    """Return a narrower request after an answer; None if it is no refusal that can be healed.

    Args:
        refused: the answer, which is read.
        body: the request, without content encoding.
        endpoint: of the request.
        repairs: runs large bodies in another process.
    """
    try:
        error = await refused.read()
        if error is None:
            return None
        work = partial(
            try_healing,
            target=endpoint.target,
            status=refused.answer.status,
            error=error,
            model=endpoint.model or None,
        )
        found = await repairs.run(work, body)
    except (aiohttp.ClientError, TimeoutError, ReknitError) as error:
        log.info("a refusal was not read: %s", error_name(error))
        return None
    except Exception as error:  # noqa: BLE001  a fault of Reknit must not hide the provider's answer
        log.warning("a refusal was forwarded without healing: %s", error_name(error))
        return None
    return found if isinstance(found, Healed) else None
