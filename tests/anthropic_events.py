"""Events of the Anthropic API's streams."""


def start(message_id="m1", **members):
    message = {"id": message_id, "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    return {"type": "message_start", "message": message | members}


def block(index, kind, **members):
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind} | members}


def delta(index, kind, **members):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind} | members}


def text(index, words):
    return delta(index, "text_delta", text=words)


def json_piece(index, piece):
    return delta(index, "input_json_delta", partial_json=piece)


def stop(index):
    return {"type": "content_block_stop", "index": index}


def end(reason="end_turn", **members):
    return [{"type": "message_delta", "delta": {"stop_reason": reason}} | members, {"type": "message_stop"}]


def call(index, tool_id, *pieces, name="ls", **members):
    started = block(index, "tool_use", id=tool_id, name=name, **({"input": {}} | members))
    return [started, *[json_piece(index, piece) for piece in pieces], stop(index)]


def hello(index=0):
    return [block(index, "text", text=""), text(index, "Hel"), text(index, "lo"), stop(index)]
