"""Runs unmodified clients through ``reknit serve``, in front of a judge on the loopback.

    make served
    make served ARGS="--only Codex --case images"
    make served ARGS="--only LangChain --target openai-chat"
    make served ARGS="--only 'AI SDK' --direct"      # without the gateway, as a control: most cases fail

The clients are Claude Code, Codex, the Gemini CLI, and agents of LangChain, pydantic-ai and the AI SDK. Each meets a
history that its provider refuses, a refusal that is healed, a stream that breaks off, one that ends without its final
event, both also inside the arguments of a call, parallel calls and an image. It calls the same address as in the other
runs: there the gateway listens, and the judge is its upstream. The programs are installed and run as for
``make resume``, the frameworks as ``framework_runs`` has it. CI does not run them.
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
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from damage import SessionFile, doubled_result, foreign_reasoning, lost_result, orphan_result
from framework_runs import FRAMEWORKS, FrameworkLab, FrameworkProcess, version_of
from judge import SIGNATURES, Asked, Judge, Step, half_call
from programs import PORT, PROGRAMS, install, run_on_loopback
from resume import INSTALLED, MARKERS, ROOT, Lab

UPSTREAM_PORT: Final = 18082
METRICS_PORT: Final = 18083
STARTED_WITHIN: Final = 60  # seconds
_COUNTED: Final = re.compile(r"^reknit_serve_(fixes|healed|streams)_total\{([^}]*)\} ([0-9.]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
# Damage that a provider refuses if the program does not repair it itself.
_DAMAGE: Final = (lost_result, doubled_result, orphan_result, foreign_reasoning)


class ProgramLab(Lab):
    """A program that talks to the judge through the gateway."""

    error = ""
    ran: tuple[str, ...] = ()

    def ask(self, prompt: str, *steps: Step, more: tuple[str, ...] = ()) -> tuple[int, str, list[Asked]]:
        """Run the program once; return its exit code, what it printed, and what the judge was asked."""
        self._judge.begin(*steps)
        self.more = more
        code, said = self._run(prompt, None)
        return code, said, list(self._judge.asked)

    def revoke(self) -> Step:
        """Return a step with reasoning and a call, after which the provider knows no signature."""
        signature = SIGNATURES[self.program.target]
        thought = {"type": "reasoning", "text": "THOUGHT-ONE", "signature": signature}
        return {"blocks": [thought, self._call(1, "a.txt", reasoning=True)], "revokes": True}

    def calls(self) -> Step:
        """Return a step with two calls."""
        return {"blocks": [self._call(1, "a.txt", reasoning=False), self._call(2, "b.txt", reasoning=False)]}

    def half_call(self, kind: str) -> Step:
        """Return a step whose stream breaks inside the arguments of a call."""
        return half_call(self._call(1, f"{'long/' * 80}a.txt", reasoning=False), kind, self.program.target)

    def show(self, picture: bytes, *steps: Step) -> tuple[int, str, list[Asked]]:
        """Run the program once so that it sends an image."""
        file = self._work / "picture.png"
        file.write_bytes(picture)
        if self.name == "Claude Code":
            call = {"type": "call", "id": "toolu_1", "name": "Read", "args": {"file_path": str(file)}}
            return self.ask("Read picture.png", {"blocks": [call]}, *steps)
        if self.name == "Codex":
            return self.ask("Describe it", *steps, more=(f"--image={file}",))
        return self.ask("Describe @picture.png", *steps)

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield each kind of damage to the session file, with the fault of the run that resumes it."""
        for damage in _DAMAGE:
            self.start_again()
            self.converse(reasoning=damage is foreign_reasoning)
            session = self.restore()
            data = session.read_bytes()
            session.write_bytes(damage(SessionFile(self.name, data)))
            outcome = self.resume(session, [marker for marker in MARKERS if marker.encode() in data])
            is_sound = outcome["outcome"] == "continues"
            yield damage.__name__, "" if is_sound else f"{outcome['outcome']}: {outcome['why']}"


Client = ProgramLab | FrameworkLab


def broken_history(lab: Client) -> str:
    """The stored history is damaged in ways that providers refuse, and the client continues it."""
    return "; ".join(f"{damage}: {fault}" for damage, fault in lab.broken() if fault)


def healed_refusal(lab: Client) -> str:
    """The provider refuses what it took one request before."""
    code, said, asked = lab.ask("PROMPT-ONE", lab.revoke(), _answer())
    if not any(each.refusal for each in asked):
        return "the provider refused nothing"
    if asked[-1].refusal or "ANSWER-ONE" not in said:
        return f"not healed, exit {code}: {asked[-1].refusal} {said[-300:]}"
    return ""


def _cut_text(kind: str) -> Callable[[Client], str]:
    def run(lab: Client) -> str:
        half = {"blocks": [{"type": "text", "text": "HALF-AN-ANSWER " * 20}], "cut": kind}
        code, said, asked = lab.ask("PROMPT-ONE", half, _answer())
        if not asked:
            return f"no request, exit {code}: {said[-300:]}"
        if "ANSWER-ONE is complete" in said or "HALF-AN-ANSWER" not in said or code:
            return ""  # the client asked again, or reported an error
        return f"half an answer counts as whole after {len(asked)} requests: {said[:600]}"

    return run


def _cut_call(kind: str) -> Callable[[Client], str]:
    def run(lab: Client) -> str:
        code, said, asked = lab.ask("PROMPT-ONE", lab.half_call(kind), _answer())
        if not asked:
            return f"no request, exit {code}: {said[-300:]}"
        if lab.ran or any("toolu_1" in json.dumps(each.body) for each in asked):
            return f"half a call counts as whole after {len(asked)} requests: {said[:600]}"
        if code or "ANSWER-ONE is complete" in said:
            return ""  # the client reported an error, or asked again
        return f"no error after {len(asked)} requests: {said[:600]}"

    return run


def parallel_tools(lab: Client) -> str:
    """The model calls two tools at once."""
    code, said, asked = lab.ask("PROMPT-ONE", lab.calls(), _answer())
    sent = json.dumps(asked[-1].body) if asked else ""
    if code or any(each.refusal for each in asked) or "ANSWER-ONE" not in said:
        return f"exit {code}: {[each.refusal for each in asked]} {said[-300:]}"
    return "" if "RESULT-ONE" in sent and "RESULT-TWO" in sent else "a result is missing"


def images(lab: Client) -> str:
    """The client sends an image."""
    code, said, asked = lab.show(_picture(), _answer())
    sent = json.dumps(asked[-1].body) if asked else ""
    if code or any(each.refusal for each in asked) or "ANSWER-ONE" not in said:
        return f"exit {code}: {[each.refusal for each in asked]} {said[-300:]}"
    return "" if "iVBORw0KGgo" in sent else "the request has no image"


def _picture() -> bytes:
    """Return a grey PNG of 32 by 32 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress((b"\0" + b"\x80" * 32) * 32)
    head = struct.pack(">IIBBBBB", 32, 32, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _answer() -> Step:
    return {"blocks": [{"type": "text", "text": "ANSWER-ONE is complete."}]}


CASES: Final[dict[str, Callable[[Client], str]]] = {
    "broken history": broken_history,
    "healed refusal": healed_refusal,
    "cut stream": _cut_text("reset"),
    "clean end in a stream": _cut_text("end"),
    "cut in arguments": _cut_call("reset"),
    "clean end in arguments": _cut_call("end"),
    "parallel tools": parallel_tools,
    "images": images,
}


@contextmanager
def gateway(state: Path) -> Iterator[None]:
    """Run the gateway in front of the judge."""
    options = ["--listen", f"127.0.0.1:{PORT}", "--to", f"http://127.0.0.1:{UPSTREAM_PORT}"]
    # By default, Chat Completions at an unknown host are vLLM's.
    more = ["--target", "openai-chat", "--metrics-port", str(METRICS_PORT), "--state-dir", str(state)]
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
        names = [value for name, value in _LABEL.findall(labels) if name not in ("target", "pipeline")]
        found[f"{kind} {' '.join(names)}"] += int(float(value))
    return found


def clients(given: argparse.Namespace, stack: ExitStack) -> dict[str, Callable[[Judge, Path], Client]]:
    """Return the chosen clients by name, version and API; programs that are not installed yet are installed."""
    names = given.only or (*PROGRAMS, *FRAMEWORKS)
    found: dict[str, Callable[[Judge, Path], Client]] = {}
    for name in (name for name in names if name in PROGRAMS):
        for version in given.version or PROGRAMS[name].versions[:1]:
            if PROGRAMS[name].target in (given.target or [PROGRAMS[name].target]):
                file = install(PROGRAMS[name], version, given.programs)
                found[f"{name} {version}"] = partial(ProgramLab, name, version, file)
    for name in (name for name in names if name in FRAMEWORKS):
        process = FrameworkProcess(name)
        stack.callback(process.close)
        for target in FRAMEWORKS[name].targets:
            if target in (given.target or [target]):
                found[f"{name} {version_of(FRAMEWORKS[name])}, {target}"] = partial(FrameworkLab, name, target, process)
    return found


def run_case(
    case: str, make: Callable[[Judge, Path], Client], judge: Judge, count: Callable[[], Counter[str]]
) -> tuple[str, str]:
    """Return the fault of a case, or "", and what the gateway counted in it."""
    before = count()
    judge.issued = set(SIGNATURES.values())
    with tempfile.TemporaryDirectory(prefix="client-") as place:
        lab = make(judge, Path(place))
        fault = CASES[case](lab)
    made = [f"{kind}={number}" for kind, number in sorted((count() - before).items())]
    return fault, ", ".join([*made, *([lab.error.partition(":")[0]] if lab.error else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=(*PROGRAMS, *FRAMEWORKS), action="append", help="clients; without it all")
    parser.add_argument("--version", action="append", help="versions of programs; without it the current one")
    parser.add_argument("--target", action="append", help="APIs; without it all of each client")
    parser.add_argument("--case", choices=CASES, action="append", help="cases; without it all")
    parser.add_argument("--programs", type=Path, default=INSTALLED, help="where the programs are installed")
    parser.add_argument("--direct", action="store_true", help="the judge takes the place of the gateway")
    given = parser.parse_args()
    with ExitStack() as stack:
        chosen = clients(given, stack)
        run_on_loopback()
        judge, failures, count = Judge(PORT if given.direct else UPSTREAM_PORT), 0, 0
        stack.callback(judge.close)
        for name, make in chosen.items():
            with ExitStack() as running:
                if not given.direct:
                    # A gateway of its own: the other would remember the refusal of a conversation that begins equally.
                    state = running.enter_context(tempfile.TemporaryDirectory(prefix="gateway-"))
                    running.enter_context(gateway(Path(state)))
                for case in given.case or CASES:
                    fault, made = run_case(case, make, judge, Counter if given.direct else counted)
                    count += 1
                    failures += bool(fault)
                    sys.stdout.write(f"{name}, {case}: {fault or 'as it must be'} ({made})\n")
                    sys.stdout.flush()
    sys.stdout.write(f"{count} cases, {failures} failures\n")
    sys.exit(bool(failures) or not count)


if __name__ == "__main__":
    main()
