"""Take the pictures of docs/screens.md: the example pages on a stream that breaks off and recovers.

python tests/screens_pictures.py [--to docs/pictures]
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

import msgspec
from browser import browsing
from example_pages import CLIENTS, address, build, served, state
from screens_lab import screens_of

from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.viewer.guard import Guard
from reknit.topics.items import (
    AgentError,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    TurnResult,
    TurnStop,
)

ROOT = Path(__file__).resolve().parents[1]


def raw(text):
    return msgspec.Raw(msgspec.json.encode(text))


def call(key, name, arguments):
    yield ItemStarted(item_id=key, item_type="tool_use", name=name)
    yield ItemDelta(item_id=key, delta_type="input_json_delta", content=arguments)
    yield ItemCompleted(item_id=key)


QUESTION = ItemStarted(
    item_id="u", item_type="user_message", content=raw("Which trains run from Bern to Basel tonight?")
)
ABANDONED = [
    QUESTION,
    ItemStarted(item_id="h", item_type="thinking", text="The timetable and the disruptions are both needed."),
    ItemCompleted(item_id="h"),
    ItemStarted(item_id="a", item_type="text"),
    ItemDelta(item_id="a", delta_type="text_delta", content="Trains run every half hour until"),
]
RETRIED = [
    ItemRetracted(item_id="a"),
    AgentError(message="The connection broke off. Trying again.", will_retry=True, seq=1),
    *call("c1", "timetable", '{"from":"Bern","to":"Basel","after":"20:00"}'),
    *call("c2", "disruptions", '{"line":"IC 6"}'),
    ItemResult(item_id="c1", content=raw("20:04, 20:34, 21:04, 21:34, 22:04, 22:34, 23:04")),
]
FINISHED = [
    ItemResult(item_id="c2", content=raw("The service did not answer within 10 s."), is_error=True),
    ItemStarted(item_id="t", item_type="text"),
    ItemDelta(item_id="t", delta_type="text_delta", content="From 20:04 a train runs every half hour, the last at"),
    ItemDelta(item_id="t", delta_type="text_delta", content=" 23:04.\nI could not check for disruptions.", at=52),
    ItemCompleted(item_id="t"),
    TurnStop(stop_reason="end_turn"),
    TurnResult(is_error=False, subtype="success", seq=2),
]


async def take(folder):
    """Take a picture of both pages during the broken connection, and after the answer."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        pages = build(Path(place))
        async with (
            served(pages) as origin,
            screens_of(Path(place), gate=Gate(Guard(), None, [origin])) as (lab, _),
            browsing() as browser,
            browser.tab(width=1200, height=540) as page,
        ):
            await _take(folder, page, lab, origin)


async def _take(folder, page, lab, origin):
    lab.publish(*ABANDONED)
    await page.go(address(origin, "both", lab.url, "s"))
    await page.until(_all("'[data-id=a]'"))
    lab.feeds.stop()
    await page.until(_both_say("Reconnecting…"))
    (folder / "screens-reconnecting.png").write_bytes(await page.screenshot())
    lab.publish(*RETRIED, *FINISHED)
    await page.until(_all("'[data-id=t]'"))
    await page.until(_both_say("Live"))
    (folder / "screens.png").write_bytes(await page.screenshot())


def _all(selector):
    return f"document.querySelectorAll({selector}).length === {len(CLIENTS)}"


def _both_say(words):
    return " && ".join(f"{state(each)} === '{words}'" for each in CLIENTS)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    asyncio.run(take(parser.parse_args().to))


if __name__ == "__main__":
    main()
