"""Unmodified UI clients, HttpAgent 1.0, AI SDK 7 and 6, on streams that break off: each block once."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from real_screens import Shown, after_breaks, client, connected, needs_clients, result_of
from screen_clients import shown_by_ag_ui, shown_by_ai_sdk, wanted
from screens_lab import screens_of

from reknit.topics.items import AnyItem, ItemCompleted, ItemDelta, ItemStarted, TurnStop

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "vectors" / "screens.jsonl").read_text(encoding="utf-8").splitlines()
]
# A stream of the AI SDK is one answer.
ONE_RUN = [vector for vector in VECTORS if len(set(vector["runs"])) == 1]
DECODER = msgspec.json.Decoder(AnyItem)

pytestmark = needs_clients


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["ag-ui", "ai-sdk"])
@pytest.mark.parametrize("vector", ONE_RUN, ids=[vector["name"] for vector in ONE_RUN])
async def test_a_stream_that_breaks_off_after_each_record(tmp_path, vector, protocol):
    items = [DECODER.decode(json.dumps(item)) for item in vector["items"]]
    found = await after_breaks(tmp_path, protocol, items)
    if protocol == "ag-ui":
        assert found["end"] in {"finished", "error"}
        assert shown_by_ag_ui(Shown(found["messages"])) == wanted(items)
    else:
        assert found.get("error") is None
        shown = shown_by_ai_sdk(found["messages"][-1], items)
        assert sorted(shown) == sorted(wanted(items))
    assert found["attempts"] > 1


def shown_by_ai_sdk_6(message, items):
    """Return what a page shows that honours ``data-reknit-changed``."""
    changed = {part["id"]: part["data"] for part in message["parts"] if part["type"] == "data-reknit-changed"}
    found = []
    for key, kind, text in shown_by_ai_sdk(message, items):
        change = changed.get(key, {}) if kind in {"text", "thinking"} else {}
        if not changed.get(key, {}).get("retracted"):
            found.append((key, kind, change.get("text", text)))
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("vector", ONE_RUN, ids=[vector["name"] for vector in ONE_RUN])
async def test_the_ai_sdk_6_gets_each_block_once(tmp_path, vector):
    items = [DECODER.decode(json.dumps(item)) for item in vector["items"]]
    found = await after_breaks(tmp_path, "ai-sdk-6", items)
    assert found.get("error") is None
    assert sorted(shown_by_ai_sdk_6(found["messages"][-1], items)) == sorted(wanted(items))


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
