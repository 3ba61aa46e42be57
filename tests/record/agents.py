"""Runs the real agent programs against a scripted API that cuts, refuses and resets, and records their output.

    make record                         # writes tests/vectors/agent_cli_runs.jsonl.gz
    make record ARGS="--only drop-after-item --to /tmp/runs.jsonl"

The programs are installed from npm, into ``.programs`` in this folder. They run with nothing of this machine's
environment, in a network namespace that has the loopback alone; so this needs the right to make one (root, as a rule).
Tests never run them: they read the records.

A plan of ``plans.jsonl`` has ``steps``, one for each request of the program, the last for all that follow (see
``scripted_api``). It also has ``prompts`` (a run each, the later ones resume the first), ``kill_after`` (milliseconds),
and for Codex ``mcp``, the answers of a server of that protocol by the request.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripted_api import Answer, Api, Step, gemini_events, responses_events

ROOT: Final = Path(__file__).parents[2]
VECTORS: Final = ROOT / "tests" / "vectors" / "agent_cli_runs.jsonl.gz"
PLANS: Final = Path(__file__).with_name("plans.jsonl")
INSTALLED: Final = Path(__file__).with_name(".programs")
PORT: Final = 18080
LONGEST_RUN: Final = 90  # seconds
# Answers calls of its one tool as the plan says, by their argument; what it has no answer for fails.
MCP_SERVER: Final = """
import json, sys
answers = json.loads(sys.argv[1])
schema = {"type": "object", "properties": {"q": {"type": "string"}}}
tool = {"name": "find", "description": "Find.", "inputSchema": schema}
for asked in map(json.loads, sys.stdin):
    if "id" in asked:
        params, reply = asked.get("params") or {}, {}
        answer = answers.get((params.get("arguments") or {}).get("q"))
        if asked["method"] == "initialize":
            info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "docs", "version": "1"}}
            reply = {"result": info | {"protocolVersion": params["protocolVersion"]}}
        elif asked["method"] == "tools/call":
            reply = {"result": answer} if answer else {"error": {"code": -32000, "message": "gone"}}
        else:
            reply = {"result": {"tools": [tool]} if asked["method"] == "tools/list" else {}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
"""
# At most this much of instructions and tool lists is kept: they are the programs' own, and independent of a run.
LONGEST_TEXT: Final = 600


class Program(NamedTuple):
    """A program: its npm package and file, its API, and how it is called.

    ``prepare`` writes its settings into a home and gives its environment; ``call`` gives arguments and standard input
    of a prompt, and of the session that it resumes. ``transcripts`` are its own files below its home, ``session`` is
    the member of its output that names the session.
    """

    package: str
    file: str
    answer: Answer
    refusal: Callable[[Step], dict[str, Any]]
    prepare: Callable[[Path, dict[str, Any]], dict[str, str]]
    call: Callable[[str, str | None], tuple[list[str], str]]
    transcripts: str
    session: str


# The programs.

_CODEX_SETTINGS: Final = f"""
model = "gpt-5.1-codex"
model_provider = "lab"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.lab]
name = "lab"
base_url = "http://127.0.0.1:{PORT}/v1"
wire_api = "responses"
stream_idle_timeout_ms = 3000
"""
_GEMINI_SETTINGS: Final = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"disableAutoUpdate": True, "checkpointing": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def _prepare_codex(home: Path, plan: dict[str, Any]) -> dict[str, str]:
    (home / ".codex").mkdir()
    server = ""
    if "mcp" in plan:
        arguments = json.dumps(["-c", MCP_SERVER, json.dumps(plan["mcp"])])
        server = f"[mcp_servers.docs]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"
    (home / ".codex" / "config.toml").write_text(_CODEX_SETTINGS + server, encoding="utf-8")
    return {"CODEX_HOME": str(home / ".codex")}


def _prepare_gemini(home: Path, _plan: dict[str, Any]) -> dict[str, str]:
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text(json.dumps(_GEMINI_SETTINGS), encoding="utf-8")
    return {"GEMINI_API_KEY": "scripted", "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{PORT}"}


def _codex(prompt: str, session: str | None) -> tuple[list[str], str]:
    resumed = [] if session is None else ["resume", session]
    unbound = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["exec", *unbound, *resumed, "-"], prompt


def _gemini(prompt: str, session: str | None) -> tuple[list[str], str]:
    resumed = [] if session is None else ["--resume", session]
    return ["-m", "gemini-2.5-flash", "--output-format", "stream-json", "--yolo", *resumed, "-p", prompt], ""


PROGRAMS: Final = {
    "codex-cli": Program(
        package="@openai/codex",
        file="codex",
        answer=responses_events,
        refusal=lambda step: {"error": {"message": step.get("emsg", "refused"), "type": "refused"}},
        prepare=_prepare_codex,
        call=_codex,
        transcripts=".codex/sessions/*/*/*/rollout-*.jsonl",
        session="thread_id",
    ),
    "gemini-cli": Program(
        package="@google/gemini-cli",
        file="gemini",
        answer=gemini_events,
        refusal=lambda step: {
            "error": {
                "code": step["status"],
                "message": step.get("emsg", "refused"),
                "status": step.get("gstatus", "INTERNAL"),
            }
        },
        prepare=_prepare_gemini,
        call=_gemini,
        transcripts=".gemini/tmp/*/chats/session-*.json*",
        session="session_id",
    ),
}


def install(program: Program, version: str) -> Path:
    """The program's file, installed from npm where it is not there yet."""
    place = INSTALLED / f"{program.file}-{version}"
    file = place / "node_modules" / ".bin" / program.file
    if not file.exists():
        place.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), f"{program.package}@{version}"]
        subprocess.run(npm, check=True, stdout=sys.stderr)
    return file


async def record(program: Program, file: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one plan: lines of standard output, run after run, exit codes, requests and transcripts."""
    lab = Path(tempfile.mkdtemp(prefix="lab-"))
    home, work = lab / "home", lab / "work"
    home.mkdir()
    work.mkdir()
    for name, content in plan.get("files", {}).items():
        (work / name).write_text(content, encoding="utf-8")
    node = str(Path(shutil.which("node") or "node").parent)
    environment = {"HOME": str(home), "PATH": f"{node}:/usr/bin:/bin", "LANG": "C.UTF-8", **program.prepare(home, plan)}
    api = Api(program.answer, program.refusal, plan["steps"])
    server = await asyncio.start_server(api.serve, "127.0.0.1", PORT, limit=2**26)
    runs: list[list[str]] = []
    exits: list[int] = []
    session: str | None = None
    try:
        for prompt in plan.get("prompts", ["Say hello"]):
            arguments, given = program.call(prompt, session)
            code, lines = await _run([str(file), *arguments], given, work, environment, plan.get("kill_after"))
            runs.append([line.replace(str(lab), "/lab") for line in lines])
            exits.append(code)
            session = session or next(
                (json.loads(line)[program.session] for line in lines if program.session in line), None
            )
        found = sorted(home.glob(program.transcripts))
        transcripts = [[_short(line.replace(str(lab), "/lab")) for line in _lines(path)] for path in found]
    finally:
        server.close()
        shutil.rmtree(lab, ignore_errors=True)
    return {"runs": runs, "exits": exits, "requests": api.bodies, "transcripts": transcripts}


async def _run(
    command: list[str], given: str, work: Path, environment: dict[str, str], kill_after: int | None
) -> tuple[int, list[str]]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=work,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    taking = asyncio.create_task(process.communicate(given.encode()))
    done, _ = await asyncio.wait([taking], timeout=LONGEST_RUN if kill_after is None else kill_after / 1000)
    if not done:
        os.killpg(process.pid, signal.SIGKILL)
    out, _ = await taking
    return process.returncode or 0, out.decode("utf-8", "replace").splitlines()


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def _short(line: str) -> str:
    """A transcript's line without the program's own instructions."""
    try:
        return json.dumps(_shortened(json.loads(line)), ensure_ascii=False)
    except json.JSONDecodeError:
        return line


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items() if key != "base_instructions"}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    return f"{value[:LONGEST_TEXT]}…" if isinstance(value, str) and len(value) > LONGEST_TEXT else value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", help="names of plans; without it all")
    parser.add_argument("--plans", type=Path, default=PLANS)
    parser.add_argument("--to", type=Path, default=VECTORS)
    parser.add_argument("--requests", action="store_true", help="write what the API was sent as well")
    given = parser.parse_args()
    plans = [json.loads(line) for line in given.plans.read_text(encoding="utf-8").splitlines()]
    plans = [plan for plan in plans if not given.only or plan["name"] in given.only]
    files = {(plan["program"], plan["version"]): install(PROGRAMS[plan["program"]], plan["version"]) for plan in plans}
    if os.environ.get("RECORDED_APART") != "1":
        # All of it runs in a namespace with the loopback alone.
        inside = 'ip link set lo up && exec "$0" "$@"'
        apart = ["unshare", "--net", "sh", "-c", inside, sys.executable, *sys.argv]
        sys.exit(subprocess.run(apart, env=os.environ | {"RECORDED_APART": "1"}, check=False).returncode)
    rows = []
    for plan in plans:
        key = plan["program"], plan["version"]
        found = asyncio.run(record(PROGRAMS[key[0]], files[key], plan["plan"]))
        if not given.requests:
            del found["requests"]
        row = {**plan, "lines": [line for run in found["runs"] for line in run], **found}
        row["runs"] = [len(run) for run in found["runs"]]
        rows.append(json.dumps(row, ensure_ascii=False))
        sys.stderr.write(f"{plan['program']} {plan['name']}: {row['runs']} lines, exit codes {row['exits']}\n")
    data = "".join(f"{row}\n" for row in rows).encode()
    given.to.write_bytes(gzip.compress(data, mtime=0) if given.to.suffix == ".gz" else data)


if __name__ == "__main__":
    main()
