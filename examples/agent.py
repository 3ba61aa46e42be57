"""An agent that uses the pipeline: write turns, and watch the answer as it arrives.

    python examples/agent.py "What is the capital of Peru?"

Needs a pipeline (``reknit demo``, or a worker) and a sender (``reknit send``). REKNIT_BOOTSTRAP_SERVERS, REKNIT_PREFIX
and REKNIT_KAFKA_… configure the connection, as for the worker.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

from reknit.client import Items, Turns, View
from reknit.pipeline.config import load_config
from reknit.topics.items import TurnStop
from reknit.topics.records import PolicyChange


async def ask(question: str) -> None:
    """Ask, and print the answer's text once the turn has ended."""
    config = load_config(None, env=os.environ, overrides={})
    session = f"example-{uuid.uuid4().hex[:8]}"
    async with Items(config, only_new=True) as items, Turns(config, producer="example/1.0") as turns:
        # With record_assistant the answer becomes a turn of the session, so the next question builds on it.
        await turns.open(session, model="claude-sonnet-4-5", policy=PolicyChange(record_assistant=True))
        await turns.append(session, {"role": "user", "content": question})
        screen = View()
        async for shown in items:
            if shown.session != session or shown.item is None:
                continue
            screen.apply(shown.item)
            if isinstance(shown.item, TurnStop):
                break
        sys.stdout.write("".join(entry.text for entry in screen.blocks("text")) + "\n")


if __name__ == "__main__":
    asyncio.run(ask(" ".join(sys.argv[1:]) or "Hello?"))
