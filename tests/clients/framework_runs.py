"""Agents of LangChain, pydantic-ai and the AI SDK: each turn is a process that gets a job and returns its outcome.

The frameworks are those of ``make frameworks`` and ``make sdks``. A job names the API, its URL, the messages so far and
a prompt. The agent has one tool, which reads a file. It streams its answer, with the defaults of the framework.
"""

from __future__ import annotations

import base64
import copy
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from framework_damage import DAMAGE, LOST, Messages
from judge import SIGNATURES, Asked, Judge, Step, half_call
from programs import PORT, environment
from resume import LONGEST_RUN, MARKERS, ROOT

sys.path.insert(0, str(Path(__file__).parents[1]))
from frameworks import environments

JAVASCRIPT: Final = ROOT / "tests" / "js"
_MODELS: Final = {
    "anthropic": "claude-sonnet-4-5-20250929",
    "openai-responses": "gpt-5.1-codex",
    "openai-chat": "gpt-4.1",
    "gemini": "gemini-2.5-flash",
}
# Chat Completions has no reasoning to refuse. So the provider refuses a parameter.
_PARAMETER: Final = "top_p"
_UNSUPPORTED: Final = f"Unsupported parameter: '{_PARAMETER}' is not supported with this model."
# Damage that a framework reports itself, so that it sends no request.
_REPORTED: Final = {
    (name, damage): "AI_MissingToolResultsError"
    for name in ("AI SDK", "AI SDK 7")
    for damage in ("lost_result", "late_result")
}


class Framework(NamedTuple):
    """A framework.

    Attributes:
        environment: its name in ``tests/frameworks``; "" for JavaScript.
        package: the package that has its version.
        targets: the APIs that its agents call.
    """

    environment: str
    package: str
    targets: tuple[str, ...]


_PYTHON_TARGETS: Final = ("anthropic", "openai-responses", "openai-chat")
FRAMEWORKS: Final = {
    "LangChain": Framework("langchain", "langchain", _PYTHON_TARGETS),
    "pydantic-ai": Framework("pydantic-ai", "pydantic-ai-slim", _PYTHON_TARGETS),
    "AI SDK": Framework("", "ai", (*_PYTHON_TARGETS, "gemini")),
    "AI SDK 7": Framework("", "ai-v7", (*_PYTHON_TARGETS, "gemini")),
}


def version_of(framework: Framework) -> str:
    """Return the installed version, or end with the command that installs it."""
    if not framework.environment:
        file = JAVASCRIPT / "node_modules" / framework.package / "package.json"
        if not file.exists():
            sys.exit("the AI SDK is not installed: run `make sdks`")
        return str(json.loads(file.read_bytes())["version"])
    missing = environments.missing(framework.environment)
    if missing:
        sys.exit(missing)
    return str(environments.requirements(framework.environment)[framework.package])


class FrameworkProcess:
    """The process in which a framework's agents run, from the first job on. A job and its outcome are a line each."""

    def __init__(self, name: str) -> None:
        self._framework = FRAMEWORKS[name]
        self._version = version_of(self._framework)
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome of a job."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(LONGEST_RUN, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(job | {"version": self._version}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"{self._framework.package} ended, or took longer than {LONGEST_RUN} s")
        return dict(json.loads(line))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        name = self._framework.environment
        if name:
            command = [environments.python(name), ROOT / "tests" / "frameworks" / name / "agent.py"]
        else:
            command = ["node", JAVASCRIPT / "agent.mjs"]
        own = environment(Path("/nonexistent")) | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class FrameworkLab:
    """An agent of a framework, and the judge that it talks to through the gateway."""

    def __init__(self, name: str, target: str, process: FrameworkProcess, judge: Judge, place: Path) -> None:
        self.name, self.target = name, target
        self._process, self._judge = process, judge
        self._work = place / "work"
        self._work.mkdir()
        for letter, text in (("a", "RESULT-ONE"), ("b", "RESULT-TWO")):
            (self._work / f"{letter}.txt").write_text(f"{text}\n", encoding="utf-8")
        self.error = ""
        # The files that the agent's tool was called with.
        self.ran: list[str] = []

    def ask(self, prompt: str, *steps: Step) -> tuple[int, str, list[Asked]]:
        """Let the agent take a turn; return 1 if it raised, what it said or raised, and what the judge was asked."""
        return self._ask(prompt, steps)

    def show(self, picture: bytes, *steps: Step) -> tuple[int, str, list[Asked]]:
        """Let the agent take a turn whose prompt has an image."""
        return self._ask("Describe it", steps, picture)

    def revoke(self) -> Step:
        """Return a step with reasoning and a call, after which the provider refuses a part of the next request."""
        if self.target == "openai-chat":
            return self.calls() | {"refuses": (_PARAMETER, _UNSUPPORTED)}
        thought = {"type": "reasoning", "text": "THOUGHT-ONE", "signature": SIGNATURES[self.target]}
        return {"blocks": [thought, self._call(1, "a.txt")], "revokes": True}

    def calls(self) -> Step:
        """Return a step with two calls."""
        return {"blocks": [self._call(1, "a.txt"), self._call(2, "b.txt")]}

    def half_call(self, kind: str) -> Step:
        """Return a step whose stream breaks inside the arguments of a call."""
        return half_call(self._call(1, f"{'long/' * 80}a.txt"), kind, self.target)

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield each kind of damage to the agent's messages, with the fault of the turn that follows."""
        kept: dict[bool, Messages] = {}
        for damage in DAMAGE:
            has_reasoning = damage.__name__ == "foreign_reasoning"
            if has_reasoning not in kept:
                kept[has_reasoning] = self._converse(reasoning=has_reasoning)
            messages = copy.deepcopy(kept[has_reasoning])
            if damage(messages, self.target):
                reported = _REPORTED.get((self.name, damage.__name__), "")
                yield damage.__name__, self._continue(messages, LOST.get(damage, ""), reported)

    def _converse(self, *, reasoning: bool) -> Messages:
        """Hold the conversation whose messages are damaged, and return them."""
        first = [{"type": "text", "text": "SAID-ONE"}, self._call(1, "a.txt")]
        if reasoning and self.target in SIGNATURES:
            first.insert(0, {"type": "reasoning", "text": "THOUGHT-ONE", "signature": SIGNATURES[self.target]})
        steps = {
            "PROMPT-ONE": [first, [self._call(2, "b.txt")], [{"type": "text", "text": "ANSWER-ONE is complete."}]],
            "PROMPT-TWO": [[{"type": "text", "text": "ANSWER-TWO is complete."}]],
        }
        messages: Messages = []
        for prompt, answers in steps.items():
            self._judge.begin(*({"blocks": blocks} for blocks in answers))
            outcome = self._run(prompt, messages)
            if outcome["error"]:
                raise RuntimeError(f"the conversation failed: {outcome['error']}")
            messages = outcome["messages"]
        return messages

    def _continue(self, messages: Messages, without: str, reported: str) -> str:
        """Continue from damaged messages with two prompts; return the fault, or "".

        Args:
            messages: the damaged messages.
            without: the marker that the repair may lose.
            reported: the beginning of the framework's own error, where it sends no request.
        """
        had = [marker for marker in MARKERS if marker in json.dumps(messages) and marker != without]
        for prompt in ("PROMPT-THREE", "PROMPT-FOUR"):
            self._judge.begin({"blocks": [{"type": "text", "text": f"ANSWER-{prompt}"}]})
            outcome = self._run(prompt, messages)
            asked = self._judge.asked
            if reported and not asked:
                return "" if reported in outcome["error"] else f"it reports {outcome['error'][:300]}"
            if not asked or asked[-1].refusal or outcome["error"]:
                return f"{asked[-1].refusal if asked else 'no request'}: {outcome['error'][:300]}"
            sent = json.dumps(asked[-1].body)
            if lost := [marker for marker in (*had, prompt) if marker not in sent]:
                return f"the request lacks {', '.join(lost)}"
            messages, had = outcome["messages"], [*had, f"ANSWER-{prompt}"]
        return ""

    def _ask(self, prompt: str, steps: tuple[Step, ...], picture: bytes = b"") -> tuple[int, str, list[Asked]]:
        self._judge.begin(*steps)
        outcome = self._run(prompt, [], picture)
        self.error, self.ran = outcome["error"], outcome["calls"]
        return int(bool(self.error)), f"{outcome['text']} {self.error}", list(self._judge.asked)

    def _call(self, number: int, file: str) -> dict[str, Any]:
        call = {"type": "call", "id": f"toolu_{number}", "name": "read_file", "args": {"path": str(self._work / file)}}
        return call | ({"signature": SIGNATURES["gemini"]} if self.target == "gemini" else {})

    def _run(self, prompt: str, messages: Messages, picture: bytes = b"") -> dict[str, Any]:
        job = {
            "target": self.target,
            "url": f"http://127.0.0.1:{PORT}",
            "model": _MODELS[self.target],
            "parameters": {_PARAMETER: 0.5} if self.target == "openai-chat" else {},
            "prompt": prompt,
            "image": base64.b64encode(picture).decode(),
            "messages": messages,
        }
        return self._process.run(job)
