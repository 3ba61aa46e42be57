"""The agent programs of these runs: where they are installed, and how each is called on a session of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

PORT: Final = 18081
MODEL: Final = "claude-sonnet-4-5-20250929"
"""The model with which Claude Code is run."""


class Program(NamedTuple):
    """A program.

    Attributes:
        package: its npm package.
        file: its command.
        versions: a current one and an older one.
        target: the API that it calls.
        sessions: its session files below its home.
        prepare: writes its settings into a home, and returns its environment.
        call: its arguments for a prompt, and for the session file that it resumes.
        shell: a call of its tool that prints a file, by version.
    """

    package: str
    file: str
    versions: tuple[str, str]
    target: str
    sessions: str
    prepare: Callable[[Path], dict[str, str]]
    call: Callable[[str, Path | None], list[str]]
    shell: Callable[[str, str], tuple[str, dict[str, Any]]]


def _prepare_claude(home: Path) -> dict[str, str]:
    (home / ".claude.json").write_text(json.dumps({"hasCompletedOnboarding": True}), encoding="utf-8")
    return {
        "ANTHROPIC_API_KEY": "scripted",
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{PORT}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "MAX_THINKING_TOKENS": "2048",
    }


def _call_claude(prompt: str, session: Path | None) -> list[str]:
    resumed = [] if session is None else ["--resume", session.stem]
    model = ["--model", MODEL]
    return ["-p", prompt, *resumed, *model, "--output-format", "json", "--allowedTools", "Read"]


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
request_max_retries = 1
stream_max_retries = 1
"""


def _prepare_codex(home: Path) -> dict[str, str]:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(_CODEX_SETTINGS, encoding="utf-8")
    return {"CODEX_HOME": str(home / ".codex")}


def _call_codex(prompt: str, session: Path | None) -> list[str]:
    resumed = [] if session is None else ["resume", session.stem[-36:]]
    free = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["exec", *free, *resumed, prompt]


_GEMINI_SETTINGS: Final = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"disableAutoUpdate": True, "checkpointing": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def _prepare_gemini(home: Path) -> dict[str, str]:
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text(json.dumps(_GEMINI_SETTINGS), encoding="utf-8")
    return {"GEMINI_API_KEY": "scripted", "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{PORT}"}


def _call_gemini(prompt: str, session: Path | None) -> list[str]:
    resumed = [] if session is None else ["--resume", "latest"]
    return ["-m", "gemini-2.5-flash", "--output-format", "json", "--yolo", *resumed, "-p", prompt]


def _codex_shell(version: str, file: str) -> tuple[str, dict[str, Any]]:
    if version.startswith("0.98."):
        return "shell_command", {"command": f"cat {file}"}
    return "exec_command", {"cmd": f"cat {file}"}


PROGRAMS: Final = {
    "Claude Code": Program(
        "@anthropic-ai/claude-code",
        "claude",
        ("2.1.332", "2.0.37"),
        "anthropic",
        ".claude/projects/*/*.jsonl",
        _prepare_claude,
        _call_claude,
        lambda _version, file: ("Read", {"file_path": file}),
    ),
    "Codex": Program(
        "@openai/codex",
        "codex",
        ("0.171.0", "0.98.0"),
        "openai-responses",
        ".codex/sessions/*/*/*/rollout-*.jsonl",
        _prepare_codex,
        _call_codex,
        _codex_shell,
    ),
    "Gemini CLI": Program(
        "@google/gemini-cli",
        "gemini",
        ("0.61.0", "0.24.0"),
        "gemini",
        ".gemini/tmp/*/chats/session-*.json*",
        _prepare_gemini,
        _call_gemini,
        lambda _version, file: ("run_shell_command", {"command": f"cat {file}", "description": "read"}),
    ),
}


def install(program: Program, version: str, place: Path) -> Path:
    """Return the program's file, installed from npm if it is not there yet."""
    folder = place / f"{program.file}-{version}"
    file = folder / "node_modules" / ".bin" / program.file
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{program.package}@{version}"]
        subprocess.run(npm, check=True, stdout=sys.stderr)
    return file


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a program: nothing of this machine's but the place of node."""
    node = str(Path(shutil.which("node") or "node").parent)
    return {"HOME": str(home), "PATH": f"{node}:/usr/bin:/bin", "LANG": "C.UTF-8"}


def run_on_loopback() -> None:
    """Continue this script in a network namespace that has the loopback alone, unless it runs in one."""
    if os.environ.get("RESUMED_APART") == "1":
        return
    inside = 'ip link set lo up && exec "$0" "$@"'
    apart = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", inside, sys.executable, *sys.argv]
    sys.exit(subprocess.run(apart, env=os.environ | {"RESUMED_APART": "1"}, check=False).returncode)
