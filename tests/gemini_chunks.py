"""Gemini's chunks, made and recovered, for the tests of its streams."""

from __future__ import annotations

import json
from typing import Any

from pipeline.streams import Recovery
from topics.items import Item, ItemCompleted
from topics.reducer import Entry, reduce

Part = dict[str, Any]


def chunk(*parts: Part, reason: str | None = None, id: str = "r1", **members: Any) -> Part:  # noqa: A002  the member
    candidate: Part = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    candidate |= {"finishReason": reason} if reason else {}
    return {"candidates": [candidate], "modelVersion": "gemini-3-pro"} | ({"responseId": id} if id else {}) | members


def text(words: str, **members: Any) -> Part:
    return {"text": words} | members


def call(name: str | None = None, **members: Any) -> Part:
    return {"functionCall": ({"name": name} if name else {}) | members}


END = chunk(text(""), reason="STOP")


def run(*chunks: Part) -> list[Item]:
    recovery = Recovery("gemini", records=False)
    items = [item for one in chunks for item in recovery.feed(f"data: {json.dumps(one)}\r\n\r\n".encode())]
    return items + recovery.end_run("exit")


def turn(*chunks: Part) -> list[Part]:
    """The blocks of the turns that go into the log."""
    recovery = Recovery("gemini")
    for one in chunks:
        recovery.feed(json.dumps(one).encode())
    recovery.end_run("exit")
    return [block for one in recovery.take_finished() for block in json.loads(one.message)["content"]]


def entries(items: list[Item]) -> list[Entry]:
    return reduce(items).entries


def shown(items: list[Item]) -> list[tuple[str, str]]:
    return [(entry.item_type, entry.text) for entry in entries(items)]


def extras(items: list[Item]) -> list[dict[str, Any]]:
    """What stands beside the content of each item, item by item."""
    done = [item for item in items if isinstance(item, ItemCompleted)]
    return [
        {name: json.loads(bytes(raw)) for name, raw in item.extras.items()} if isinstance(item.extras, dict) else {}
        for item in done
    ]
