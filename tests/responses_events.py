"""Builders for Responses API events and a recovery of them, for the tests of Responses streams."""

import json

import stream_runs


def event(kind, output_index: int | None = 0, **members):
    """An event about an item; with None as its place it has no output index."""
    place = {} if output_index is None else {"output_index": output_index}
    return {"type": f"response.{kind}"} | place | members


def response(kind, *output, id="r1", **members):  # noqa: A002  the member's name
    return {"type": f"response.{kind}", "response": {"id": id, "model": "gpt-5", "output": list(output)} | members}


def text(words, **members):
    return {"type": "output_text", "text": words, "annotations": []} | members


def message(*parts, **members):
    """A message with these parts; strings become text parts."""
    content = [text(part) if isinstance(part, str) else part for part in parts]
    return {"type": "message", "id": "m1", "role": "assistant", "content": content} | members


def call(arguments, call_id="t1", **members):
    named = {"type": "function_call", "id": f"f-{call_id}", "call_id": call_id, "name": "f"}
    return named | {"arguments": arguments} | members


def delta(words, output_index=0, content_index=0):
    return event("output_text.delta", output_index, content_index=content_index, delta=words)


def added(item, output_index=0):
    return event("output_item.added", output_index, item=item)


def done(item, output_index: int | None = 0):
    return event("output_item.done", output_index, item=item)


CREATED = response("created")


def numbered(events):
    return [one | {"sequence_number": number} for number, one in enumerate(events)]


def encoded(*events):
    return [f"event: {one.get('type')}\ndata: {json.dumps(one)}\n\n".encode() for one in events]


def recovered(*events):
    return stream_runs.run("openai-responses", encoded(*events))


def run(*events):
    return recovered(*events).items


def log(*events):
    return recovered(*events).blocks
