"""Runs the real Claude Code, Codex and Gemini CLI on damaged session files, before and after ``reknit repair``.

    make resume                                   # prints the table of outcomes
    make resume ARGS="--only Codex --to /tmp/outcomes.jsonl"

Each program holds a conversation with a judge on the loopback (``judge``), its session file is damaged (``damage``),
and it resumes the session twice: as it is, and repaired. The programs are installed from npm into ``.programs`` in this
folder, run with nothing of this machine's environment, and in a network namespace that has the loopback alone. CI does
not run them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from damage import DAMAGE, SessionFile
from judge import SIGNATURES, Judge
from programs import PORT, PROGRAMS, environment, install, run_on_loopback

from reknit.pipeline import normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.transcripts import repair_transcript

ROOT: Final = Path(__file__).parents[2]
INSTALLED: Final = Path(__file__).with_name(".programs")
LONGEST_RUN: Final = 120  # seconds
MARKERS: Final = ("PROMPT-ONE", "SAID-ONE", "RESULT-ONE", "RESULT-TWO", "ANSWER-ONE", "PROMPT-TWO", "ANSWER-TWO")
HISTORIES: Final = ("tools", "tools and reasoning")


class Lab:
    """A program with a home and a folder of its own, and the judge that it talks to."""

    def __init__(self, name: str, version: str, file: Path, judge: Judge, place: Path) -> None:
        self.name, self.version, self.program = name, version, PROGRAMS[name]
        self._file, self._judge = file, judge
        self.home, self._work, self._kept = place / "home", place / "work", place / "kept"
        self.home.mkdir()
        self._work.mkdir()
        for letter, text in (("a", "RESULT-ONE"), ("b", "RESULT-TWO")):
            (self._work / f"{letter}.txt").write_text(f"{text}\n", encoding="utf-8")
        self._environment = environment(self.home) | self.program.prepare(self.home)
        # More arguments of the next run.
        self.more: tuple[str, ...] = ()

    def start_again(self) -> None:
        """Give the program a new home."""
        shutil.rmtree(self.home)
        self.home.mkdir()
        self.program.prepare(self.home)

    def converse(self, *, reasoning: bool) -> None:
        """Hold the conversation whose session file is damaged, and keep it."""
        signature = SIGNATURES[self.program.target]
        thought = [{"type": "reasoning", "text": "THOUGHT-ONE", "signature": signature}] if reasoning else []
        first = [*thought, {"type": "text", "text": "SAID-ONE"}, self._call(1, "a.txt", reasoning=reasoning)]
        second = [self._call(2, "b.txt", reasoning=reasoning)]
        self._judge.begin(
            {"blocks": first}, {"blocks": second}, {"blocks": [{"type": "text", "text": "ANSWER-ONE is complete."}]}
        )
        self._run("PROMPT-ONE", None)
        if self.name != "Gemini CLI":  # which writes the whole history again when it resumes
            self._judge.begin({"blocks": [{"type": "text", "text": "ANSWER-TWO is complete."}]})
            self._run("PROMPT-TWO", self.session())
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self.home, self._kept, symlinks=True)

    def _call(self, number: int, file: str, *, reasoning: bool) -> dict[str, Any]:
        name, arguments = self.program.shell(self.version, str(self._work / file))
        call = {"type": "call", "id": f"toolu_{number}", "name": name, "args": arguments}
        signed = reasoning and self.program.target == "gemini"
        return call | {"signature": SIGNATURES["gemini"]} if signed else call

    def session(self) -> Path:
        """Return the conversation's file: the largest one, since a program may begin others."""
        files = [path for path in self.home.glob(self.program.sessions) if not path.name.startswith("agent-")]
        return max(files, key=lambda path: path.stat().st_size)

    def restore(self) -> Path:
        """Put the home back as it was after the conversation, and return the session's file."""
        shutil.rmtree(self.home)
        shutil.copytree(self._kept, self.home, symlinks=True)
        return self.session()

    def resume(self, session: Path, had: list[str]) -> dict[str, Any]:
        """Resume a session with two prompts, one after the other, and return the outcome."""
        refusals: list[str] = []
        lost: list[str] = []
        for number, prompt in enumerate(("PROMPT-THREE", "PROMPT-FOUR")):
            self._judge.begin({"blocks": [{"type": "text", "text": f"ANSWER-{prompt}"}]})
            code, said = self._run(prompt, session)
            asked = [each for each in self._judge.asked if prompt in json.dumps(each.body)]
            if not asked:
                return {"outcome": "does not resume", "why": f"exit {code}: {said[-300:]}"}
            refusals += [asked[-1].refusal] if asked[-1].refusal else []
            sent = json.dumps(asked[-1].body)
            wanted = had if number == 0 else [*had, "ANSWER-PROMPT-THREE"]
            lost = [marker for marker in wanted if marker not in sent]
            if refusals:
                return {"outcome": "refused", "why": refusals[0], "lost": lost}
        return {"outcome": "continues", "lost": lost}

    def _run(self, prompt: str, session: Path | None) -> tuple[int, str]:
        first, *arguments = self.program.call(prompt, session)
        done = subprocess.run(
            [str(self._file), first, *self.more, *arguments],
            cwd=self._work,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LONGEST_RUN,
            check=False,
        )
        return done.returncode, (done.stderr + done.stdout).decode("utf-8", "replace").strip()


def outcomes(lab: Lab, histories: list[str], kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each kind of damage; without a choice of histories, half of them in each."""
    for half, history in enumerate(histories or HISTORIES):
        lab.start_again()
        lab.converse(reasoning=history != "tools")
        session = lab.restore()
        data = session.read_bytes()
        had = [marker for marker in MARKERS if marker.encode() in data]
        unchanged = repair_transcript(data, session.name)
        yield _row(lab, history, "none") | {
            "before": lab.resume(session, had),
            "repair": [fix.code for fix in unchanged.fixes],
            "normalize": [fix.code for fix in normalize(data, lab.program.target).fixes],
        }
        for number, damage in enumerate(DAMAGE):
            is_chosen = damage.__name__ in kinds if kinds else bool(histories) or number % 2 == half
            if is_chosen:
                yield _row(lab, history, damage.__name__) | _outcome(lab, damage(SessionFile(lab.name, data)), had)


def _row(lab: Lab, history: str, damage: str) -> dict[str, Any]:
    return {"program": lab.name, "version": lab.version, "history": history, "damage": damage}


def _outcome(lab: Lab, damaged: bytes, had: list[str]) -> dict[str, Any]:
    session = lab.restore()
    session.write_bytes(damaged)
    before = lab.resume(session, had)
    session = lab.restore()
    session.write_bytes(damaged)
    command = [sys.executable, "-m", "reknit", "repair", "--in-place", "--for", lab.version, str(session)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    repaired = session.read_bytes()
    kept = session.with_name(f"{session.name}.before-repair")
    kept.unlink(missing_ok=True)
    said = [line.split(": ")[1] for line in done.stderr.splitlines() if line.startswith("line ")]
    after = lab.resume(session, had)
    try:
        again = [fix.code for fix in normalize(repaired, lab.program.target).fixes]
        same = repair_transcript(repaired, session.name).data == repaired
    except InputError as error:
        again, same = [str(error)], done.returncode == 2
    return {
        "before": before,
        "exit": done.returncode,
        "repair": said or [done.stderr.strip()],
        "after": after,
        "normalize": again,
        "idempotent": same,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the outcomes as a table of Markdown."""
    head = "| program | history | damage | before the repair | changes | after the repair | lost |\n"
    return f"{head}|---|---|---|---|---|---|---|\n" + "".join(
        f"| {row['program']} {row['version']} | {row['history']} | {row['damage'].replace('_', ' ')} | "
        f"{_said(row['before'])} | {', '.join(row['repair'])} | {row['after']['outcome']} | "
        f"{', '.join(row['after'].get('lost', [])) or 'nothing'} |\n"
        for row in rows
        if row["damage"] != "none"
    )


def _said(outcome: dict[str, Any]) -> str:
    lost = outcome.get("lost")
    if outcome["outcome"] == "continues":
        return f"continues without {', '.join(lost)}" if lost else "continues"
    return f"{outcome['outcome']}: {outcome['why'][:120]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="programs; without it all")
    parser.add_argument("--version", action="append", help="versions; without it a current and an older one")
    parser.add_argument("--damage", action="append", default=[], help="kinds of damage; without it all")
    parser.add_argument("--history", action="append", choices=HISTORIES, help="without it half of the damage in each")
    parser.add_argument("--programs", type=Path, default=INSTALLED, help="where the programs are installed")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "resume.jsonl", help="gets a line for each outcome")
    given = parser.parse_args()
    runs = [(name, version) for name in given.only or PROGRAMS for version in given.version or PROGRAMS[name].versions]
    files = {run: install(PROGRAMS[run[0]], run[1], given.programs) for run in runs}
    run_on_loopback()
    judge, rows = Judge(PORT), []
    given.to.parent.mkdir(parents=True, exist_ok=True)
    with given.to.open("w", encoding="utf-8") as log:
        for name, version in runs:
            with tempfile.TemporaryDirectory(prefix="resume-") as place:
                lab = Lab(name, version, files[name, version], judge, Path(place))
                for row in outcomes(lab, given.history or [], given.damage):
                    rows.append(row)
                    log.write(f"{json.dumps(row)}\n")
                    log.flush()
    judge.close()
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
