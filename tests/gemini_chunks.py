"""Builders for Gemini chunks and a recovery of them, for the tests of Gemini streams."""

import json

import stream_runs
from stream_runs import items_of, only

from reknit.topics.items import ItemCompleted


def chunk(*parts, reason=None, id="r1", **members):  # noqa: A002  the member's name
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    candidate |= {"finishReason": reason} if reason else {}
    return {"candidates": [candidate], "modelVersion": "gemini-3-pro"} | ({"responseId": id} if id else {}) | members


def text(words, **members):
    return {"text": words} | members


def call(name=None, **members):
    return {"functionCall": ({"name": name} if name else {}) | members}


END = chunk(text(""), reason="STOP")


def run(*chunks):
    return items_of("gemini", [f"data: {json.dumps(one)}\r\n\r\n".encode() for one in chunks])


def turn(*chunks):
    return stream_runs.run("gemini", *chunks).blocks


def extras(items):
    done = only(items, ItemCompleted)
    return [
        {name: json.loads(bytes(raw)) for name, raw in item.extras.items()} if isinstance(item.extras, dict) else {}
        for item in done
    ]
