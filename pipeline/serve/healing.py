"""Healing on the request path: a refused request is sent again without what the provider refused.

The client sees the accepted answer only. The gateway keeps nothing of it, so the client's next request may be refused
for the same cause and healed again.
"""

from __future__ import annotations

import logging
from functools import partial

from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.healing.single import Healed, try_healing
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.received import Refusal
from reknit.pipeline.serve.repair import Repairs

log = logging.getLogger("reknit.serve")


async def healed(refusal: Refusal, body: bytes, endpoint: Endpoint, repairs: Repairs) -> Healed | None:
    """Return a narrower request after a refusal; None if none is known.

    Args:
        refusal: of the provider.
        body: the request, without content encoding.
        endpoint: of the request.
        repairs: runs large bodies in another process.
    """
    work = partial(
        try_healing,
        target=endpoint.target,
        status=refusal.status,
        error=refusal.error,
        model=endpoint.model or None,
    )
    try:
        found = await repairs.run(work, body)
    except ReknitError as error:
        log.info("a refusal was not read: %s", error_name(error))
        return None
    except Exception as error:  # noqa: BLE001  a fault of Reknit must not hide the provider's answer
        log.warning("a refusal was forwarded without healing: %s", error_name(error))
        return None
    return found if isinstance(found, Healed) else None
