"""The command ``reknit viewer``: its login, its messages, and the files that it leaves, without a broker."""

import asyncio
import json
import logging
import os
import signal
import stat

import msgspec
import pytest
from click.testing import CliRunner

from reknit.pipeline.cli import main, running
from reknit.pipeline.viewer.guard import Viewed


@pytest.fixture
def started(monkeypatch):
    """Return a function that runs the command with a stub server, which records its arguments and signals itself."""
    given, root = {}, logging.getLogger()
    for name in ("handlers", "level"):  # set by the command for its process
        monkeypatch.setattr(root, name, getattr(root, name))

    async def run(config, guard, *, on_start, **options):
        given.update(options, config=config, guard=guard)
        on_start("http://127.0.0.1:8760/")
        if guard._audit is not None:
            guard._audit(Viewed("now", "1.2.3.4", "ada", "GET", "/sessions/a", 200))
        os.kill(os.getpid(), given.get("signal", signal.SIGTERM))
        await asyncio.sleep(30)

    monkeypatch.setattr("reknit.pipeline.viewer.server.run_viewer", run)

    def command(*options, **more):
        given.update(more)
        done = CliRunner().invoke(main, ["viewer", "--wait", "0", *map(str, options)])
        return done, given

    return command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(started, number):
    done, _ = started(signal=number)
    assert (done.exit_code, done.stderr) == (0, "reknit viewer: http://127.0.0.1:8760/\n")


@pytest.mark.parametrize(
    ("options", "name"),
    [((), ".reknit/viewer.sqlite"), (("--prefix", "live."), ".reknit/viewer-live.sqlite"), (("--index", "x"), "x")],
)
def test_each_pipeline_has_its_own_index(started, options, name):
    _, given = started(*options)
    assert str(given["index_file"]) == name


def test_a_login_token_is_created_for_its_owner_and_never_logged(started, tmp_path):
    file = tmp_path / "token"
    done, given = started("--token-file", file, "--host", "0.0.0.0")  # noqa: S104  what is tested
    token = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert given["guard"].login == token
    assert len(token) >= 32
    assert done.stderr == f"reknit viewer: http://127.0.0.1:8760/ (log in with the token in {file})\n"
    again, given = started("--token-file", file)
    assert (given["guard"].login, token in again.stderr) == (token, False)


def test_the_operator_gets_an_address_that_logs_in(started, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("sixteen-letters-or-more\n")
    monkeypatch.setattr(running, "is_seen_by_a_person", lambda: True)
    done, _ = started("--token-file", tmp_path / "token")
    assert done.stderr == "reknit viewer: http://127.0.0.1:8760/?token=sixteen-letters-or-more\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--host", "0.0.0.0"), "login_missing"),  # noqa: S104  what is tested
        (("--trusted-proxy", "10.0.0.1"), "login_missing"),
        (("--token-file", "{tmp}/empty"), "login_missing"),
        (("--token-file", "{tmp}/short"), "login_short"),
        (("--token-file", "{tmp}/new", "--trusted-proxy", "proxy"), "proxy_unknown"),
    ],
)
def test_options_that_would_admit_others_are_rejected(started, tmp_path, options, code):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "short").write_text("short\n")
    done, _ = started(*(option.format(tmp=tmp_path) for option in options))
    assert done.exit_code == 2
    assert f"[{code}]" in done.stderr


def test_the_audit_log_is_appended_and_readable_only_by_its_owner(started, tmp_path):
    file = tmp_path / "viewed.jsonl"
    for _ in range(2):
        started("--audit-log", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = [msgspec.json.decode(line, type=Viewed) for line in file.read_bytes().splitlines()]
    assert lines == [Viewed("now", "1.2.3.4", "ada", "GET", "/sessions/a", 200)] * 2


def test_the_address_is_a_log_line_if_logs_are_json(started, monkeypatch):
    monkeypatch.setenv("REKNIT_LOG_FORMAT", "json")
    done, _ = started()
    [line] = done.stderr.splitlines()
    assert json.loads(line)["event"] == "viewer: http://127.0.0.1:8760/"


def test_titles_of_sessions_are_read_from_a_file(started, tmp_path):
    file = tmp_path / "titles.json"
    file.write_text('{"s1": "The first one"}')
    _, given = started("--titles", file)
    assert given["titles"] == {"s1": "The first one"}
    _, without = started()
    assert without["titles"] == {}


@pytest.mark.parametrize("text", ["", "[]", '{"s1": 1}', "\udcff"])
def test_a_file_without_titles_is_reported(started, tmp_path, text):
    file = tmp_path / "titles.json"
    file.write_text(text, errors="surrogateescape")
    done, _ = started("--titles", file)
    assert (done.exit_code, "bad_titles" in done.stderr or "titles by session id" in done.stderr) == (2, True)
