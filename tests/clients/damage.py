"""Eight kinds of damage to a session file that a real program wrote. Each function returns the damaged file.

The markers are texts of the conversation of ``resume``: they name its prompts, answers and results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))
from session_files import FOREIGN, png

ABSENT: Final = "00000000-0000-4000-8000-00000000dead"
Object = dict[str, Any]


class SessionFile:
    """The lines of a session file; a document of one object is one line."""

    def __init__(self, program: str, data: bytes) -> None:
        self.program = program
        try:
            self.lines = [json.loads(data)]
            self.indent: int | None = 2
        except json.JSONDecodeError:
            self.lines = [json.loads(line) for line in data.splitlines()]
            self.indent = None

    @property
    def messages(self) -> list[Object]:
        """The messages, where they are changed: the lines themselves, or members of the document."""
        return self.lines[0]["messages"] if self.indent else self.lines

    def encode(self) -> bytes:
        if self.indent:
            return json.dumps(self.lines[0], indent=2, ensure_ascii=False).encode()
        return b"".join(_line(each) + b"\n" for each in self.lines)

    def find(self, *texts: str, last: bool = False) -> int:
        """Return the place of the first message that has all texts, or of the last one."""
        places = [
            at
            for at, line in enumerate(self.messages)
            if _is_message(line) and all(t in json.dumps(line) for t in texts)
        ]
        return places[-1 if last else 0]


def _line(value: Object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _is_message(line: Object) -> bool:
    return line.get("type") in ("user", "assistant", "gemini", "response_item")


def _relink(file: SessionFile, old: str, new: str | None) -> None:
    for line in file.lines:
        if line.get("parentUuid") == old:
            line["parentUuid"] = new


def lost_result(file: SessionFile) -> bytes:
    if file.program == "Gemini CLI":
        for message in file.messages:
            for call in message.get("toolCalls", []):
                if call["id"].endswith("toolu_1"):
                    call.pop("result", None)
    at = _result(file)
    if at is not None:
        gone = file.messages.pop(at)
        if file.program == "Claude Code":
            _relink(file, gone["uuid"], gone["parentUuid"])
    return file.encode()


def _result(file: SessionFile) -> int | None:
    """Return the place of the message that holds the first result alone; None if it is only with its call."""
    kind = {"Claude Code": "tool_result", "Codex": "function_call_output", "Gemini CLI": "functionResponse"}
    try:
        return next(
            at
            for at, line in enumerate(file.messages)
            if _is_message(line)
            and line["type"] != "gemini"
            and all(text in json.dumps(line) for text in (kind[file.program], "RESULT-ONE", "toolu_1"))
        )
    except StopIteration:
        return None


def doubled_result(file: SessionFile) -> bytes:
    return _second_result(file, "toolu_1")


def orphan_result(file: SessionFile) -> bytes:
    return _second_result(file, "toolu_9")


def _second_result(file: SessionFile, call_id: str) -> bytes:
    at = _result(file)
    if at is None:
        # In an older document results are with their calls only.
        call = next(call for message in file.messages for call in message.get("toolCalls", []))
        call["result"].append(json.loads(json.dumps(call["result"][0]).replace("toolu_1", call_id)))
        return file.encode()
    line = json.loads(json.dumps(file.messages[at]).replace("toolu_1", call_id))
    if file.program == "Claude Code":
        _relink(file, line["uuid"], ABSENT)
        line |= {"uuid": ABSENT, "parentUuid": line["uuid"]}
    elif file.program == "Gemini CLI":
        line["id"] = ABSENT
    file.messages.insert(at + 1, line)
    return file.encode()


def cut_line(file: SessionFile) -> bytes:
    """The write of the last answer stopped in the middle."""
    data = file.encode()
    answer = _answer(file)
    return data[: data.index(answer) + len(answer) + 5]


def corrupt_middle_line(file: SessionFile) -> bytes:
    """A disk lost bytes in the middle of a line: of an answer, or of a call and its result."""
    data = file.encode()
    if file.program != "Gemini CLI":
        at = data.index(_line(file.messages[file.find("ANSWER-ONE", "assistant")])) + 120
    elif file.indent:
        at = data.index(b'"toolu_2"')
    else:
        at = data.index(_line(file.messages[file.find("toolCalls", "toolu_2", last=True)])) + 120
    return data[:at] + bytes(24) + data[at + 24 :]


def _answer(file: SessionFile) -> bytes:
    """Return the begin of the file's last message, up to the end of its text's marker."""
    marker = "ANSWER-ONE" if file.program == "Gemini CLI" else "ANSWER-TWO"
    message = file.messages[file.find(marker, last=True)]
    text = json.dumps(message, indent=2, ensure_ascii=False) if file.indent else _line(message).decode()
    if file.indent:
        return marker.encode()
    return text[: text.index(marker) + len(marker)].encode()


def foreign_reasoning(file: SessionFile) -> bytes:
    """An answer came from another provider, through a gateway."""
    foreign = FOREIGN[file.program]
    if file.program == "Claude Code":
        line = file.messages[file.find("SAID-ONE", "assistant")]
        line["message"]["content"].insert(0, {"type": "thinking", "thinking": "FOREIGN", "signature": foreign})
    elif file.program == "Codex":
        at = file.find("SAID-ONE", "assistant")
        payload = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": foreign}
        line = {**file.messages[at], "payload": payload}
        file.messages.insert(at, line)
    else:
        for message in file.messages:
            if message.get("content") == "SAID-ONE":
                message["content"] = [{"text": "SAID-ONE", "thoughtSignature": foreign}]
    return file.encode()


def oversized_image(file: SessionFile) -> bytes:
    if file.program == "Claude Code":
        source = {"type": "base64", "media_type": "image/png", "data": png(8100, 10)}
        message = file.messages[file.find("PROMPT-ONE", "user")]["message"]
        message["content"] = [{"type": "text", "text": "PROMPT-ONE"}, {"type": "image", "source": source}]
    elif file.program == "Codex":
        url = "data:image/png;base64," + png(10, 10, 40 << 20)
        content = file.messages[file.find("PROMPT-ONE", "user")]["payload"]["content"]
        content.append({"type": "input_image", "image_url": url})
    else:
        message = file.messages[file.find("PROMPT-ONE", "user")]
        image = {"inlineData": {"mimeType": "image/png", "data": png(10, 10, 16 << 20)}}
        message["content"] = [{"text": "PROMPT-ONE"}, image]
    return file.encode()


def broken_parent_chain(file: SessionFile) -> bytes:
    """A line names one that is not in the file. A rollout has no parents: its first line is missing."""
    if file.program == "Claude Code":
        file.messages[file.find("toolu_2", "tool_use", "assistant")]["parentUuid"] = ABSENT
        return file.encode()
    if file.program == "Codex":
        return b"".join(_line(line) + b"\n" for line in file.lines if line["type"] != "session_meta")
    if file.indent:
        del file.lines[0]["projectHash"]
        return file.encode()
    answer = file.messages[file.find("ANSWER-ONE")]
    rewind = _line({"$rewindTo": answer["id"]}) + b"\n"
    return file.encode().replace(_line(answer), _line(answer)[:-9]) + rewind


DAMAGE: Final[tuple[Callable[[SessionFile], bytes], ...]] = (
    lost_result,
    doubled_result,
    orphan_result,
    cut_line,
    corrupt_middle_line,
    foreign_reasoning,
    oversized_image,
    broken_parent_chain,
)
