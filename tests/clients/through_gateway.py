"""Runs the real Claude Code, Codex and Gemini CLI through ``reknit serve``, in front of a judge on the loopback.

    make served
    make served ARGS="--only Codex --case images"

Each program meets a history that its provider refuses, a refusal that is healed, a stream that breaks off, one that
ends without its final event, parallel calls and an image. It calls the same address as in the other runs: there the
gateway listens, and the judge is its upstream. The programs are installed and run as for ``make resume``. CI does not
run them.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from damage import SessionFile, doubled_result, foreign_reasoning, lost_result, orphan_result
from judge import SIGNATURES, Asked, Judge
from programs import PORT, PROGRAMS, install, run_on_loopback
from resume import INSTALLED, MARKERS, ROOT, Lab

UPSTREAM_PORT: Final = 18082
METRICS_PORT: Final = 18083
STARTED_WITHIN: Final = 60  # seconds
_COUNTED: Final = re.compile(r"^reknit_serve_(fixes|healed|streams)_total\{([^}]*)\} ([0-9.]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
# Damage that a provider refuses if the program does not repair it itself.
_DAMAGE: Final = (lost_result, doubled_result, orphan_result, foreign_reasoning)


class GatewayLab(Lab):
    """A program that talks to the judge through the gateway."""

    def ask(self, prompt: str, *steps: dict[str, object], more: tuple[str, ...] = ()) -> tuple[int, str, list[Asked]]:
        """Run the program once; return its exit code, what it printed, and what the judge was asked."""
        self._judge.begin(*steps)
        self.more = more
        code, said = self._run(prompt, None)
        return code, said, list(self._judge.asked)

    def revoke(self) -> dict[str, object]:
        """Return a step with reasoning and a call, after which the provider knows no signature."""
        signature = SIGNATURES[self.program.target]
        thought = {"type": "reasoning", "text": "THOUGHT-ONE", "signature": signature}
        return {"blocks": [thought, self._call(1, "a.txt", reasoning=True)], "revokes": True}

    def calls(self) -> dict[str, object]:
        """Return a step with two calls."""
        return {"blocks": [self._call(1, "a.txt", reasoning=False), self._call(2, "b.txt", reasoning=False)]}

    def image(self) -> tuple[str, tuple[dict[str, object], ...], tuple[str, ...]]:
        """Return a prompt, a step and arguments that make the program send an image."""
        file = self._work / "picture.png"
        file.write_bytes(_picture())
        if self.name == "Claude Code":
            call = {"type": "call", "id": "toolu_1", "name": "Read", "args": {"file_path": str(file)}}
            return "Read picture.png", ({"blocks": [call]},), ()
        if self.name == "Codex":
            return "Describe it", (), (f"--image={file}",)
        return "Describe @picture.png", (), ()


def broken_history(lab: GatewayLab) -> str:
    """The session file is damaged in ways that providers refuse; the program resumes it."""
    found = []
    for damage in _DAMAGE:
        lab.start_again()
        lab.converse(reasoning=damage is foreign_reasoning)
        session = lab.restore()
        data = session.read_bytes()
        session.write_bytes(damage(SessionFile(lab.name, data)))
        outcome = lab.resume(session, [marker for marker in MARKERS if marker.encode() in data])
        if outcome["outcome"] != "continues":
            found.append(f"{damage.__name__}: {outcome['outcome']}: {outcome['why']}")
    return "; ".join(found)


def healed_refusal(lab: GatewayLab) -> str:
    """The provider refuses the reasoning that it sent one request before."""
    code, said, asked = lab.ask("PROMPT-ONE", lab.revoke(), _answer())
    if not any(each.refusal for each in asked):
        return "the provider refused nothing"
    if asked[-1].refusal or "ANSWER-ONE" not in said:
        return f"not healed, exit {code}: {asked[-1].refusal} {said[-300:]}"
    return ""


def _cut(kind: str) -> Callable[[GatewayLab], str]:
    def run(lab: GatewayLab) -> str:
        half = {"blocks": [{"type": "text", "text": "HALF-AN-ANSWER " * 20}], "cut": kind}
        code, said, asked = lab.ask("PROMPT-ONE", half, _answer())
        if "ANSWER-ONE is complete" in said or "HALF-AN-ANSWER" not in said or code:
            return ""  # the program asked again, or reported an error
        return f"half an answer counts as whole after {len(asked)} requests: {said[:600]}"

    return run


def parallel_tools(lab: GatewayLab) -> str:
    """The model calls two tools at once."""
    code, said, asked = lab.ask("PROMPT-ONE", lab.calls(), _answer())
    sent = json.dumps(asked[-1].body) if asked else ""
    if any(each.refusal for each in asked) or "ANSWER-ONE" not in said:
        return f"exit {code}: {[each.refusal for each in asked]} {said[-300:]}"
    return "" if "RESULT-ONE" in sent and "RESULT-TWO" in sent else "a result is missing"


def images(lab: GatewayLab) -> str:
    """The program sends an image."""
    prompt, steps, more = lab.image()
    code, said, asked = lab.ask(prompt, *steps, _answer(), more=more)
    sent = json.dumps(asked[-1].body) if asked else ""
    if any(each.refusal for each in asked) or "ANSWER-ONE" not in said:
        return f"exit {code}: {[each.refusal for each in asked]} {said[-300:]}"
    return "" if "iVBORw0KGgo" in sent else "the request has no image"


def _picture() -> bytes:
    """Return a grey PNG of 32 by 32 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress((b"\0" + b"\x80" * 32) * 32)
    head = struct.pack(">IIBBBBB", 32, 32, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _answer() -> dict[str, object]:
    return {"blocks": [{"type": "text", "text": "ANSWER-ONE is complete."}]}


CASES: Final[dict[str, Callable[[GatewayLab], str]]] = {
    "broken history": broken_history,
    "healed refusal": healed_refusal,
    "cut stream": _cut("reset"),
    "clean end in a stream": _cut("end"),
    "parallel tools": parallel_tools,
    "images": images,
}


@contextmanager
def gateway(state: Path) -> Iterator[None]:
    """Run the gateway in front of the judge."""
    options = ["--listen", f"127.0.0.1:{PORT}", "--to", f"http://127.0.0.1:{UPSTREAM_PORT}"]
    more = ["--metrics-port", str(METRICS_PORT), "--state-dir", str(state)]
    process = subprocess.Popen([sys.executable, "-m", "reknit", "serve", *options, *more], cwd=ROOT)
    try:
        end = time.monotonic() + STARTED_WITHIN
        while not _is_ready():
            if process.poll() is not None or time.monotonic() > end:
                sys.exit("the gateway does not start")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/readyz") as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def counted() -> Counter[str]:
    """Return the counts of the gateway's fixes, healings and ends of streams."""
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics") as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for kind, labels, value in _COUNTED.findall(text):
        names = [value for name, value in _LABEL.findall(labels) if name != "target"]
        found[f"{kind} {' '.join(names)}"] += int(float(value))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="programs; without it all")
    parser.add_argument("--version", action="append", help="versions; without it the current one")
    parser.add_argument("--case", choices=CASES, action="append", help="cases; without it all")
    parser.add_argument("--programs", type=Path, default=INSTALLED, help="where the programs are installed")
    given = parser.parse_args()
    names = given.only or PROGRAMS
    runs = [(name, version) for name in names for version in given.version or PROGRAMS[name].versions[:1]]
    files = {run: install(PROGRAMS[run[0]], run[1], given.programs) for run in runs}
    run_on_loopback()
    judge, failures, count = Judge(UPSTREAM_PORT), 0, 0
    with tempfile.TemporaryDirectory(prefix="gateway-") as state, gateway(Path(state)):
        for name, version in runs:
            for case in given.case or CASES:
                with tempfile.TemporaryDirectory(prefix="client-") as place:
                    before = counted()
                    judge.issued = set(SIGNATURES.values())
                    fault = CASES[case](GatewayLab(name, version, files[name, version], judge, Path(place)))
                    made = ", ".join(f"{kind}={number}" for kind, number in sorted((counted() - before).items()))
                count += 1
                failures += bool(fault)
                sys.stdout.write(f"{name} {version}, {case}: {fault or 'as it must be'} ({made})\n")
                sys.stdout.flush()
    judge.close()
    sys.stdout.write(f"{count} cases, {failures} failures\n")
    sys.exit(bool(failures) or not count)


if __name__ == "__main__":
    main()
