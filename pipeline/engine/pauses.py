"""Pauses of a service's periodic tasks, which end with the service."""

from __future__ import annotations

from mode import Service


async def pause(service: Service, seconds: float) -> bool:
    """Sleep for ``seconds``; return False if the service stops, then also earlier.

    ``Service.sleep`` waits with ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that arrives
    together with the end of the wait. At a stop that is always the case. A task that then began a request would delay
    the stop by the request's time limit: 3 s were measured in each stop while the brokers were silent.
    """
    await service.sleep(seconds)
    return not service.should_stop
