"""Gemini's chunks, made and recovered, for the tests of its streams."""

import json

from pipeline.streams import Recovery
from topics.items import ItemCompleted
from topics.reducer import reduce


def chunk(*parts, reason=None, id="r1", **members):  # noqa: A002  the member
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    candidate |= {"finishReason": reason} if reason else {}
    return {"candidates": [candidate], "modelVersion": "gemini-3-pro"} | ({"responseId": id} if id else {}) | members


def text(words, **members):
    return {"text": words} | members


def call(name=None, **members):
    return {"functionCall": ({"name": name} if name else {}) | members}


END = chunk(text(""), reason="STOP")


def run(*chunks):
    recovery = Recovery("gemini", records=False)
    items = [item for one in chunks for item in recovery.feed(f"data: {json.dumps(one)}\r\n\r\n".encode())]
    return items + recovery.end_run("exit")


def turn(*chunks):
    """The blocks of the turns that go into the log."""
    recovery = Recovery("gemini")
    for one in chunks:
        recovery.feed(json.dumps(one).encode())
    recovery.end_run("exit")
    return [block for one in recovery.take_finished() for block in json.loads(one.message)["content"]]


def entries(items):
    return reduce(items).entries


def shown(items):
    return [(entry.item_type, entry.text) for entry in entries(items)]


def extras(items):
    """What stands beside the content of each item, item by item."""
    done = [item for item in items if isinstance(item, ItemCompleted)]
    return [
        {name: json.loads(bytes(raw)) for name, raw in item.extras.items()} if isinstance(item.extras, dict) else {}
        for item in done
    ]
