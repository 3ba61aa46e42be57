"""Messages for tests in the canonical shape. A turn takes blocks; a string becomes a text block."""

import base64
import struct

from reknit.pipeline import Session


def text(words, **more):
    return {"type": "text", "text": words, **more}


def call(call_id="a", name="ls", **given):
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id="a", content="files", **more):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def thinking(words="hm", provider=None, **more):
    issuer = {} if provider is None else {"issuer": {"provider": provider}}
    return {"type": "thinking", "thinking": words, **more, **issuer}


def image(data=None, media_type="image/png"):
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data or png()}}


def png(width=1, height=1):
    """The base64 of the first bytes of a picture: enough to read its size and to pass as complete."""
    size = struct.pack(">II", width, height)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + size + bytes(8) + b"IEND").decode()


def user(*blocks, **more):
    return {"role": "user", "content": _content(blocks), **more}


def said(*blocks, **more):
    """An assistant turn."""
    return {"role": "assistant", "content": _content(blocks), **more}


def system(words):
    return {"role": "system", "content": words}


def called(*call_ids):
    return said(*map(call, call_ids))


def answered(call_id, content="files"):
    return user(result(call_id, content))


def rounds(count):
    """``count`` questions, each answered after a tool call."""
    return [
        message
        for at in range(count)
        for message in (user(f"u{at}"), called(f"toolu_{at}"), answered(f"toolu_{at}"), said("ok"))
    ]


def session_of(*messages, **given):
    """A session that has received these messages."""
    session = Session(**given)
    for message in messages:
        session.append(message)
    return session


def _content(blocks):
    return [text(block) if isinstance(block, str) else block for block in blocks]
