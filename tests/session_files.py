"""Session files of Claude Code, Codex and the Gemini CLI: one conversation with two tool calls, and damage to it."""

import base64
import json
import struct
import zlib

SESSION = "0f1e2d3c-0000-4000-8000-000000000000"
CLAUDE_SIGNATURE = "EqQBCkYIBxgCKkBsomething"
# The beginning of OpenAI's encrypted reasoning, and of a Claude signature.
FOREIGN = {
    "Claude Code": "gAAAAABo" + "x" * 120,
    "Codex": "Eq" + "QBCkYIBxgCKkAd" * 8,
    "Gemini CLI": "gAAAAABo" + "x" * 120,
}


def uuid(number):
    return f"00000000-0000-4000-8000-{number:012d}"


def png(width, height, size=0):
    """Return the base64 of a PNG of these sides, with a chunk of ``size`` bytes that no reader shows."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rest = chunk(b"tEXt", bytes(size)) if size else b""
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + rest + chunk(b"IDAT", b"") + chunk(b"IEND", b"")).decode()


def encoded(*lines):
    return b"".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for line in lines)


def claude_code(*, reasoning=False, image=None, results=("r1", "r2")):
    """Return the lines of a Claude Code transcript."""
    shared = {"isSidechain": False, "userType": "external", "cwd": "/srv", "sessionId": SESSION, "version": "2.1.330"}

    def line(number, kind, content, **more):
        message = {"role": kind, "content": content}
        if kind == "assistant":
            message |= {"id": f"msg_{number}", "type": "message", "model": "claude-sonnet-4-5-20250929"}
        stamp = f"2026-11-27T10:00:{number:02d}.000Z"
        parent = uuid(number - 1) if number else None
        return {"parentUuid": parent, **shared, "type": kind, "message": message, "uuid": uuid(number)} | {
            "timestamp": stamp,
            **more,
        }

    def call(number):
        return {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"path": f"/srv/{number}"}}

    def result(number):
        return {"tool_use_id": f"toolu_{number}", "type": "tool_result", "content": results[number - 1]}

    thought = [{"type": "thinking", "thinking": "First the file.", "signature": CLAUDE_SIGNATURE}] if reasoning else []
    picture = (
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}] if image else []
    )
    return [
        {"type": "file-history-snapshot", "messageId": uuid(0), "snapshot": {}},
        line(0, "user", [{"type": "text", "text": "Read both."}, *picture]),
        line(1, "assistant", [*thought, {"type": "text", "text": "Yes."}, call(1)]),
        line(2, "user", [result(1)], toolUseResult="r1"),
        line(3, "assistant", [call(2)]),
        line(4, "user", [result(2)], toolUseResult="r2"),
        line(5, "assistant", [{"type": "text", "text": "Both are read."}]),
        line(6, "user", "Thanks. And now?"),
    ]


ROLLOUT = f"rollout-2026-11-27T10-00-00-{SESSION}.jsonl"


def codex(*, reasoning=False, image=None):
    """Return the lines of a Codex rollout."""

    def line(number, kind, **payload):
        return {"timestamp": f"2026-11-27T10:00:{number:02d}.000Z", "type": kind, "payload": payload}

    def message(number, role, *parts):
        return line(number, "response_item", type="message", role=role, content=list(parts))

    def call(number):
        arguments = json.dumps({"cmd": f"ls {number}"})
        return line(
            number, "response_item", type="function_call", name="shell", arguments=arguments, call_id=f"call_{number}"
        )

    def output(number):
        return line(number, "response_item", type="function_call_output", call_id=f"call_{number}", output=f"r{number}")

    thought = line(
        2, "response_item", type="reasoning", summary=[], content=None, encrypted_content="gAAAAABo" + "y" * 120
    )
    picture = [{"type": "input_image", "image_url": f"data:image/png;base64,{image}"}] if image else []
    meta = {"id": SESSION, "timestamp": "2026-11-27T10:00:00.000Z", "cwd": "/srv", "originator": "codex_cli_rs"}
    return [
        line(0, "session_meta", **meta, cli_version="0.169.0", source="cli"),
        line(0, "turn_context", cwd="/srv", approval_policy="never", model="gpt-5-codex", summary="auto"),
        message(1, "user", {"type": "input_text", "text": "List both."}, *picture),
        *([thought] if reasoning else []),
        call(1),
        output(1),
        line(3, "event_msg", type="token_count", info=None),
        call(2),
        output(2),
        message(5, "assistant", {"type": "output_text", "text": "Both are listed."}),
        message(6, "user", {"type": "input_text", "text": "Thanks. And now?"}),
    ]


def gemini_chat(*, reasoning=False, image=None):
    """Return the lines of a Gemini CLI chat."""
    begun = "2026-11-27T10:00:00.000Z"
    head = {"sessionId": SESSION, "projectHash": "a" * 64, "startTime": begun, "lastUpdated": begun, "kind": "main"}

    def message(number, kind, content, **more):
        return {"id": uuid(number), "timestamp": begun, "type": kind, "content": content, **more}

    def response(number):
        said = {"output": f"r{number}"}
        return {"functionResponse": {"id": f"ls__{number}", "name": "ls", "response": said}}

    def called(number):
        call = {"id": f"ls__{number}", "name": "ls", "args": {"path": f"/srv/{number}"}}
        return {**call, "result": [response(number)], "status": "success", "timestamp": begun}

    model = {"model": "gemini-2.5-pro", "thoughts": []}
    signed = [{"text": "Yes.", "thoughtSignature": "CiQB" + "z" * 60}] if reasoning else "Yes."
    picture = [{"inlineData": {"mimeType": "image/png", "data": image}}] if image else []
    return [
        head,
        message(0, "user", [{"text": "List both."}, *picture]),
        message(1, "gemini", signed, **model, toolCalls=[called(1)]),
        {"$set": {"lastUpdated": begun}},
        message(2, "user", [response(1)]),
        message(3, "gemini", "", **model, toolCalls=[called(2)]),
        message(4, "user", [response(2)]),
        message(5, "gemini", "Both are listed.", **model),
        message(6, "user", [{"text": "Thanks. And now?"}]),
    ]
