"""Resumes session files that Reknit wrote, with the real Claude Code and Codex.

    make clients
    make clients ARGS="--only Codex --version 0.98.0 --case langchain"

Each history of ``tests/vectors/frameworks.jsonl.gz`` is repaired, converted into the program's shape, and written where
the program keeps its sessions. The program resumes it with a prompt, and its request must have every text, call, result
and piece of reasoning that the file has, in their order, and break no rule of its provider. The programs are installed
and run as for ``make resume``. CI does not run them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from judge import SIGNATURES, Judge
from msgspec import structs
from programs import MODEL, PORT, PROGRAMS, environment, install, run_on_loopback

from reknit.pipeline import normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import WRITERS, Written, write
from reknit.pipeline.model import Block, Conversation, Issuer, RedactedThinking, Thinking, Turn, Unknown

sys.path.insert(0, str(Path(__file__).parents[1]))
from framework_cases import cases

INSTALLED: Final = Path(__file__).with_name(".programs")
LONGEST_RUN: Final = 120  # seconds
PROMPT: Final = "PROMPT-AFTERWARDS"
SHAPES: Final = {"Claude Code": "claude-code", "Codex": "codex-rollout"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=SHAPES, action="append", help="programs; without it both")
    parser.add_argument("--version", action="append", help="versions; without it the current one")
    parser.add_argument("--case", default="", help="a part of the names of the histories; without it all of them")
    parser.add_argument("--programs", type=Path, default=INSTALLED, help="where the programs are installed")
    given = parser.parse_args()
    names = given.only or SHAPES
    runs = [(name, version) for name in names for version in given.version or PROGRAMS[name].versions[:1]]
    files = {run: install(PROGRAMS[run[0]], run[1], given.programs) for run in runs}
    run_on_loopback()
    judge, failures, count = Judge(PORT), 0, 0
    for name, version in runs:
        for case, fault in _outcomes(name, files[name, version], judge, given.case):
            count += 1
            failures += bool(fault)
            sys.stdout.write(f"{name} {version}, {case}: {fault or 'continues with all that was written'}\n")
            sys.stdout.flush()
    judge.close()
    sys.stdout.write(f"{count} sessions, {failures} failures\n")
    sys.exit(bool(failures) or not count)


def _outcomes(name: str, file: Path, judge: Judge, part: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each history, and what is wrong with the request that resumes it, or ""."""
    for case in cases():
        named = f"{case['shape']}/{case['case']}"
        history = _repaired(case["text"], PROGRAMS[name].target) if part in named else None
        if history is not None:
            conversation = _by_the_model(read(history).conversation)
            written = write(conversation, WRITERS[SHAPES[name]])
            with tempfile.TemporaryDirectory(prefix="written-") as place:
                yield named, _resumed(name, file, judge, Path(place), written)


def _repaired(text: str, target: str) -> bytes | None:
    """Return the valid request of a history: each case is broken, and a program refuses or repairs what is broken."""
    try:
        return normalize(text, target).body
    except InputError:
        return None


def _by_the_model(conversation: Conversation) -> Conversation:
    """Return a history with Anthropic's reasoning by the model that resumes it: the program leaves out another's."""
    turns = tuple(structs.replace(turn, blocks=tuple(map(_signed, turn.blocks))) for turn in conversation.turns)
    return structs.replace(conversation, turns=turns, model=MODEL)


def _signed(block: Block) -> Block:
    if not isinstance(block, (Thinking, RedactedThinking)):
        return block
    if isinstance(block.issuer, Issuer) and block.issuer.provider != "anthropic":
        return block
    return structs.replace(block, issuer=Issuer(provider="anthropic", model=MODEL))


def _resumed(name: str, file: Path, judge: Judge, place: Path, written: Written) -> str:
    home, work, program = place / "home", place / "work", PROGRAMS[name]
    home.mkdir()
    work.mkdir()
    settings = environment(home) | program.prepare(home)
    session = home / _place(name, written, work)
    session.parent.mkdir(parents=True)
    session.write_bytes(written.data)
    # The signatures of the file are the provider's own here.
    signed = re.findall(r'"(?:signature|encrypted_content|data)":"([^"]+)"', written.data.decode())
    judge.issued = {*SIGNATURES.values(), *signed}
    judge.begin({"blocks": [{"type": "text", "text": "ANSWER-AFTERWARDS"}]})
    done = subprocess.run(
        [str(file), *program.call(PROMPT, session)],
        cwd=work, env=settings, stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST_RUN, check=False,
    )  # fmt: skip
    asked = [each for each in judge.asked if PROMPT in json.dumps(each.body)]
    if not asked:
        said = (done.stderr + done.stdout).decode("utf-8", "replace")
        return f"does not resume, exit {done.returncode}: {said[-300:]}"
    if asked[-1].refusal:
        return f"refused: {asked[-1].refusal}"
    sent = list(_said(read(json.dumps(asked[-1].body)).conversation.turns))
    return _missing(list(_said(read(written.data).conversation.turns)), sent)


def _place(name: str, written: Written, work: Path) -> str:
    """Return where a program looks for a session, below its home."""
    first = json.loads(written.data.partition(b"\n")[0])
    if name == "Claude Code":
        return f".claude/projects/{re.sub('[^a-zA-Z0-9]', '-', str(work))}/{first['sessionId']}.jsonl"
    begun, thread = first["payload"]["timestamp"], first["payload"]["id"]
    return f".codex/sessions/{begun[:10].replace('-', '/')}/rollout-{begun[:19].replace(':', '-')}-{thread}.jsonl"


def _said(turns: tuple[Turn, ...]) -> Iterator[Any]:
    """Yield what blocks say: a text in a result is a list of one, and no member of a cache or an item counts."""
    for turn in turns:
        for block in turn.blocks:
            members = json.loads(bytes(block.raw)) if isinstance(block, Unknown) else _members(block)
            content = members.get("content")
            if isinstance(content, str):
                members["content"] = [{"type": "text", "text": content}]
            yield turn.role, members


def _members(block: Any) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(msgspec.json.encode(block))
    return {key: value for key, value in members.items() if key not in ("cache_control", "own", "issuer", "caller")}


def _missing(written: list[Any], sent: list[Any]) -> str:
    """Return the first thing in the file that is not in the request, in its order, or ""."""
    left = iter(sent)
    for each in written:
        if not any(_holds(other, each) for other in left):
            return f"the request has no {json.dumps(each)[:300]} at its place"
    return ""


def _holds(sent: Any, written: Any) -> bool:
    """Return True if a sent block is a written one; a program may add words to the text of a message."""
    if sent == written:
        return True
    (role, block), (other_role, other) = sent, written
    return bool(role == other_role and block["type"] == other["type"] == "text" and other["text"] in block["text"])


if __name__ == "__main__":
    main()
