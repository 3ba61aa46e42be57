"""Unmodified UI clients, HttpAgent 1.0 and AI SDK 7, on streams that break off: each text once, and each call once."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from screen_clients import shown_by_ag_ui, shown_by_ai_sdk, wanted
from screens_lab import screens_of

from reknit.topics.items import AnyItem, ItemCompleted, ItemDelta, ItemStarted, TurnStop

SCRIPT = Path(__file__).parents[1] / "js" / "read_screen.mjs"
VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "vectors" / "screens.jsonl").read_text(encoding="utf-8").splitlines()
]
# A stream of the AI SDK is one answer.
ONE_RUN = [vector for vector in VECTORS if len(set(vector["runs"])) == 1]
DECODER = msgspec.json.Decoder(AnyItem)


def _missing():
    if shutil.which("node") is None:
        return "needs Node.js 20"
    packages = SCRIPT.parent / "node_modules"
    is_there = (packages / "@ag-ui").is_dir() and (packages / "ai-v7").is_dir()
    return "" if is_there else "needs the packages of tests/js: run `make sdks`"


if _missing() and os.environ.get("REQUIRE_NODE"):
    raise RuntimeError(_missing())
pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


class Shown:
    """What a client shows, in the form that the models of the clients have."""

    def __init__(self, messages):
        self.messages = messages


async def client(protocol, lab, *text):
    return await asyncio.create_subprocess_exec(
        *("node", str(SCRIPT), protocol, lab.url, "s", *text), stdout=asyncio.subprocess.PIPE
    )


async def connected(lab):
    """Wait until the client has a connection."""
    while not lab.feeds.connections:  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0.005)


async def result_of(process):
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return json.loads(output)


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["ag-ui", "ai-sdk"])
@pytest.mark.parametrize("vector", ONE_RUN, ids=[vector["name"] for vector in ONE_RUN])
async def test_a_stream_that_breaks_off_after_each_record(tmp_path, vector, protocol):
    items = [DECODER.decode(json.dumps(item)) for item in vector["items"]]
    visible = next(count for count, item in enumerate(items, start=1) if isinstance(item, ItemStarted))
    async with screens_of(tmp_path, recent_seconds=10**10) as (lab, _):
        lab.publish(*items[:visible])
        process = await client(protocol, lab)
        for item in items[visible:]:
            await connected(lab)
            lab.publish(item)
            await asyncio.sleep(0)
            lab.feeds.stop()
        found = await result_of(process)
    if protocol == "ag-ui":
        assert found["end"] in {"finished", "error"}
        assert shown_by_ag_ui(Shown(found["messages"])) == wanted(items)
    else:
        assert found.get("error") is None
        shown = shown_by_ai_sdk(found["messages"][-1], items)
        assert sorted(shown) == sorted(wanted(items))
    assert found["attempts"] > 1


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["ag-ui", "ai-sdk"])
async def test_the_answer_to_a_message_survives_a_broken_connection(tmp_path, protocol):
    answer = (
        ItemStarted(item_id="t", item_type="text"),
        ItemDelta(item_id="t", delta_type="text_delta", content="Hello, "),
        ItemDelta(item_id="t", delta_type="text_delta", content="wörld 👋🏽.", at=7),
        ItemCompleted(item_id="t"),
        TurnStop(stop_reason="end_turn"),
    )
    async with screens_of(tmp_path, takes_input=True, recent_seconds=10**10) as (lab, _):
        process = await client(protocol, lab, "Hi")
        for item in answer:
            await connected(lab)
            lab.publish(item)
            await asyncio.sleep(0.01)
            lab.feeds.stop()
        found = await result_of(process)
        assert len(lab.turns.all) == 1
    shown = [
        (message["role"], message.get("content") or "".join(part.get("text", "") for part in message["parts"]))
        for message in found["messages"]
    ]
    assert shown == [("user", "Hi"), ("assistant", "Hello, wörld 👋🏽.")]
