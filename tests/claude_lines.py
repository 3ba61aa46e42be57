"""Lines of the Claude CLI's output.

The helpers follow the notation of the measurements: ``start`` is ``[``, ``block`` and ``delta`` stream, ``finish`` is
``<reason>``, ``stop`` is ``]``, ``whole`` an ``assistant`` line.
"""


def event(kind, message_id=None, **members):
    named = {} if message_id is None else {"api_message_id": message_id}
    return {"type": "stream_event", "event": {"type": kind} | members, "parent_tool_use_id": None} | named


def start(message_id):
    return event("message_start", message={"id": message_id, "model": "m"})


def block_start(index, block):
    return event("content_block_start", index=index, content_block=block)


def block_delta(index, **delta):
    return event("content_block_delta", index=index, delta=delta)


def text(content, index=0, kind="text"):
    """A block that starts and streams, without its stop event."""
    streamed = {"type": f"{kind}_delta", kind: content}
    return [block_start(index, {"type": kind, kind: ""}), block_delta(index, **streamed)]


def call(tool_id, partial, index=0):
    block = {"type": "tool_use", "id": tool_id, "name": "Bash", "input": {}}
    return [block_start(index, block), block_delta(index, type="input_json_delta", partial_json=partial)]


def end(index=0):
    return event("content_block_stop", index=index)


def finish(reason):
    return event("message_delta", delta={"stop_reason": reason})


def stop(abandoned_from=None, message_id=None):
    line = event("message_stop", message_id)
    if abandoned_from is not None:
        line["abandoned_blocks"] = {"api_message_id": message_id, "from_block_index": abandoned_from}
    return line


def whole(message_id, *blocks, **members):
    message = {"role": "assistant", "model": "m", "content": list(blocks)}
    if message_id is not None:
        message["id"] = message_id
    return {"type": "assistant", "message": message, "parent_tool_use_id": None} | members


def said(content):
    return {"type": "text", "text": content}


def used(tool_id, **arguments):
    return {"type": "tool_use", "id": tool_id, "name": "Bash", "input": arguments}


def answer(tool_id, content="out", **members):
    block = {"type": "tool_result", "tool_use_id": tool_id, "content": content}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": None} | members


def result(content="", **members):
    return {"type": "result", "subtype": "success", "is_error": False, "result": content} | members


RETRY = {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error_status": 529, "error": "x"}
INIT = {"type": "system", "subtype": "init", "session_id": "s2"}
