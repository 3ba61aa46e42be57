"""Histories that agent frameworks wrote, with the history that a reader must give, and the comparison of the two.

The expectations are in Anthropic's shape, as `shared/reference/frameworks.md` defines them. Neighbours of one role are
merged, and a text that is JSON is compared by its value.
"""

import contextlib
import gzip
import json
import os
import re
from pathlib import Path

import msgspec
from msgspec import UNSET

from reknit.pipeline.model import RedactedThinking, Thinking, ToolResult, ToolUse, Unknown

MARK = re.compile(r"MARK-[a-z]+\d{2}")
TARGETS = ("anthropic", "openai-chat", "openai-responses", "gemini", "bedrock-converse")
HERE = Path(__file__).parent
SHARED = Path(os.environ.get("REKNIT_CASES", HERE.parent.parent / "shared" / "cases")) / "frameworks"
_BY_READER = "ID-BY-READER"


def cases():
    """Return the histories that the project has copies of."""
    lines = gzip.decompress((HERE / "vectors" / "frameworks.jsonl.gz").read_bytes()).decode().splitlines()
    return [json.loads(line) for line in lines]


def shared_cases():
    """Return the histories in the shared directory that the project has no copy of, or that are different there."""
    known = {(case["shape"], case["case"]): case["text"] for case in cases()}
    found = []
    for path in sorted(SHARED.glob("*/*.expect.json")):
        expect = json.loads(path.read_text(encoding="utf-8"))
        text = (path.parent / expect["sample"]).read_text(encoding="utf-8")
        name = path.name.removesuffix(".expect.json")
        if known.get((path.parent.name, name)) != text:
            found.append({"shape": path.parent.name, "case": name, "text": text, "expect": expect})
    return found


def read_as_expected(found):
    """Return what a reader gave in the form of an expectation: system, model and messages."""
    system, messages = [], []
    conversation = found.conversation
    if isinstance(conversation.system, str):
        system = [conversation.system]
    elif conversation.system is not None:
        system = [block["text"] for block in msgspec.json.decode(conversation.system)]
    for turn in conversation.turns:
        if turn.role == "system":
            system += [block.text for block in turn.blocks]
        elif blocks := _blocks(turn.blocks):
            messages.append({"role": turn.role, "content": blocks})
    return "\n\n".join(system) or None, conversation.model, compared(messages)


def _blocks(blocks):
    """Return blocks as expectations have them: Gemini's signature is a member of the block that it seals."""
    found, seal = [], None
    for block in blocks:
        if isinstance(block, Thinking) and not block.thinking and _provider(block) == "gemini":
            seal = block
            continue
        shown = _shown(block)
        if seal is not None:
            shown |= {"thoughtSignature": seal.signature, "issuer": msgspec.to_builtins(seal.issuer)}
            seal = None
        found.append(shown)
    return found


def _provider(block):
    return None if block.issuer is UNSET else block.issuer.provider


def _shown(block):
    own = UNSET if isinstance(block, Unknown) else block.own
    kept = {} if block.issuer is UNSET else {"issuer": msgspec.to_builtins(block.issuer)}
    if isinstance(block, Unknown):
        return {"type": "native", "raw": msgspec.json.decode(block.raw)} | kept
    if isinstance(block, (Thinking, RedactedThinking, ToolUse)) and own is not UNSET and own.kind:
        members = {name: msgspec.json.decode(value) for name, value in own.members.items()}
        if isinstance(block, ToolUse):
            members["id"] = block.id
            kept = {"issuer": {"provider": own.provider}}
        return {"type": "native", "raw": {"type": own.kind} | members} | kept
    shown = msgspec.json.decode(msgspec.json.encode(block))
    shown.pop("own", None)
    if isinstance(block, ToolResult):
        # Gemini's mark of a response that is kept as it was given.
        shown.pop("issuer", None)
    return shown


def compared(messages):
    """Return messages in the form in which they are compared."""
    merged = []
    for message in messages:
        content = [_compared(block) for block in message["content"]]
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += content
        else:
            merged.append({"role": message["role"], "content": content})
    return merged


def _compared(block):
    block = dict(block)
    if block["type"] == "tool_result":
        content = block.get("content", "")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        block["content"] = [_compared(part) for part in parts]
    elif block["type"] == "text":
        block.pop("structured", None)
        if block["text"][:1] in ("{", "["):
            with contextlib.suppress(ValueError):
                block["text"] = json.loads(block["text"])
    elif "issuer" in block and block["type"] not in ("native", "thinking", "redacted_thinking", "tool_use"):
        # A block of one provider, with its type.
        issuer = block.pop("issuer")
        block = {"type": "native", "raw": block, "issuer": issuer}
    return block


def with_readers_ids(expected, given):
    """Return expected messages with the ids that the reader made, where any may be."""
    text = json.dumps(expected)
    if _BY_READER not in text:
        return expected
    ids = [
        block[key] for message in given for block in message["content"] for key in ("id", "tool_use_id") if key in block
    ]
    for at, place in enumerate(re.findall(r'"(?:id|tool_use_id)": "([^"]*)"', text)):
        if place == _BY_READER and at < len(ids):
            text = text.replace(f'"{_BY_READER}"', json.dumps(ids[at]), 1)
    return json.loads(text)


def marked_blocks(found):
    """Yield each marker of a conversation with the places of its blocks."""
    for turn in found.conversation.turns:
        for at, block in enumerate(turn.blocks):
            place = turn.paths[at] if turn.paths is not None else f"{turn.place}.content.{at}"
            for mark in MARK.findall(msgspec.json.encode(block).decode()):
                yield mark, place
