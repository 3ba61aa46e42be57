"""The command ``reknit screens``: its options, its messages, and tokens, without a broker."""

import asyncio
import logging
import os
import signal
import stat

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from click.testing import CliRunner

from reknit.pipeline.cli import main
from reknit.pipeline.screen_server.access import Signer


@pytest.fixture
def started(monkeypatch):
    """Return a function that runs the command with a stub server, which records its arguments and signals itself."""
    given, root = {}, logging.getLogger()
    for name in ("handlers", "level"):  # set by the command for its process
        monkeypatch.setattr(root, name, getattr(root, name))

    async def run(config, gate, *, on_start, **options):
        given.update(options, config=config, gate=gate)
        on_start("http://127.0.0.1:8770/")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(30)

    monkeypatch.setattr("reknit.pipeline.screen_server.server.run_screens", run)

    def command(*options):
        return CliRunner().invoke(main, ["screens", *map(str, options)]), given

    return command


@pytest.mark.parametrize("name", [(), ("serve",)])
def test_it_serves_without_input_by_default(started, name):
    done, given = started(*name, "--wait", "0")
    assert (done.exit_code, done.stderr) == (0, "reknit screens: http://127.0.0.1:8770/\n")
    assert (given["takes_input"], given["with_details"], given["port"]) == (False, False, 8770)
    assert str(given["index_file"]) == ".reknit/screens.sqlite"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--host", "0.0.0.0"), "key_missing"),  # noqa: S104  it is refused
        (("--trusted-proxy", "10.0.0.1"), "key_missing"),
        (("--allow-origin", "*"), "origin_unknown"),
        (("--allow-origin", "https://app.example.com/path"), "origin_unknown"),
        (("--allow-origin", "app.example.com"), "origin_unknown"),
        (("--input",), "inputs_foreign"),
    ],
)
def test_settings_that_are_not_safe_are_refused(started, monkeypatch, options, code):
    monkeypatch.setenv("REKNIT_SOURCE_PREFIX", "other.")
    done, given = started("--wait", "0", *options)
    assert done.exit_code == 2
    assert code in done.stderr
    assert given == {}


def test_a_key_is_created_for_its_owner(started, tmp_path):
    file = tmp_path / "key"
    done, given = started("--wait", "0", "--key-file", file, "--host", "0.0.0.0", "--allow-origin", "https://a.example")  # noqa: S104  with a key
    assert done.exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in done.output
    assert given["gate"].limits.of_peer == 200


def test_a_check_is_imported_and_decides_without_a_key(started, tmp_path, monkeypatch):
    (tmp_path / "our_check.py").write_text("def check(headers, session):\n    return headers[session]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ("--check", "our_check:check", "--check-timeout", "2", "--host", "0.0.0.0")  # noqa: S104  with a check
    done, given = started("--wait", "0", *options)
    assert (done.exit_code, given["host"]) == (0, "0.0.0.0")  # noqa: S104  as above
    request = make_mocked_request("GET", "/", headers={"s": "write", "t": "read", "u": "deny"})

    async def decisions():
        for session in "stu":
            try:
                yield (await given["gate"].grant(request, session)).can_write
            except web.HTTPNotFound:
                yield None

    async def gathered():
        return [each async for each in decisions()]

    assert asyncio.run(gathered()) == [True, False, None]


def test_a_check_that_does_not_exist_is_refused(started):
    done, given = started("--wait", "0", "--check", "no_such_module:check")
    assert (done.exit_code, given) == (2, {})
    assert "check_unknown" in done.stderr


def test_a_token_opens_the_sessions_that_it_names(tmp_path):
    file = tmp_path / "key"
    options = ["--session", "a", "--prefix", "team-1/", "--scope", "write", "--seconds", "60"]
    done = CliRunner().invoke(main, ["screens", "token", "--key-file", str(file), *options])
    claims = Signer(file.read_text().strip()).claims(done.stdout.strip(), 0)
    assert (claims.sessions, claims.prefixes, claims.scope) == (("a",), ("team-1/",), "write")
    assert claims.covers("team-1/x")
    assert not claims.covers("b")


def test_a_token_without_sessions_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["screens", "token", "--key-file", str(tmp_path / "key")])
    assert (done.exit_code, "token_empty" in done.stderr) == (2, True)
