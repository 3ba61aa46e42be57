"""`reknit repair`: the files that it writes, what it refuses, and its exit codes."""

import json
import subprocess
import sys

import pytest
import session_files
from click.testing import CliRunner
from session_files import encoded

from reknit.pipeline.cli import main
from reknit.pipeline.transcripts import repair_transcript

NAME = "session.jsonl"


def damaged():
    lines = session_files.claude_code()
    del lines[3]
    lines[3]["parentUuid"] = session_files.uuid(1)
    return encoded(*lines)


DAMAGED = damaged()
REPAIRED = repair_transcript(DAMAGED).data


@pytest.fixture
def file(tmp_path):
    (tmp_path / NAME).write_bytes(DAMAGED)
    return tmp_path / NAME


def run(*arguments):
    done = CliRunner().invoke(main, ["repair", *map(str, arguments)])
    return done.exit_code, done.stderr


def names(file):
    return sorted(each.name for each in file.parent.iterdir())


def test_a_copy_is_written_next_to_the_file_and_the_changes_are_printed(file):
    code, said = run(file)
    assert code == 3
    assert (file.read_bytes(), file.with_name(f"{NAME}.repaired").read_bytes()) == (DAMAGED, REPAIRED)
    assert said.splitlines()[:3] == [
        "reknit repair: a session of Claude Code",
        "line 3: result_synthesised: a call without a result got an error result that says so (Read)",
        "1 changes, 1 of them with a loss",
    ]


def test_a_file_is_replaced_in_place_and_the_old_one_is_kept(file):
    file.chmod(0o640)
    assert run("--in-place", file)[0] == 3
    assert (file.read_bytes(), file.with_name(f"{NAME}.before-repair").read_bytes()) == (REPAIRED, DAMAGED)
    assert file.stat().st_mode & 0o777 == 0o640

    file.write_bytes(DAMAGED)
    assert run("--in-place", file)[0] == 3
    assert names(file) == [NAME, f"{NAME}.before-repair", f"{NAME}.before-repair.2"]


def test_a_dry_run_writes_nothing(file):
    code, said = run("--dry-run", file)
    assert (code, "result_synthesised" in said, names(file)) == (3, True, [NAME])


def test_a_copy_may_have_another_name_and_replaces_nothing(file):
    other = file.with_name("other.jsonl")
    assert run("--to", other, file)[0] == 3
    assert other.read_bytes() == REPAIRED
    code, said = run("--to", other, file)
    assert (code, "exists" in said) == (2, True)
    assert run("--to", other, "--in-place", file)[0] == 2


def test_a_file_without_damage_is_not_written(file):
    file.write_bytes(REPAIRED)
    code, said = run("--in-place", file)
    assert (code, said.splitlines()[-1], names(file)) == (0, "nothing to repair", [NAME])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows the open files of processes")
def test_a_file_that_a_program_has_open_is_refused(file):
    program = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        code, said = run("--in-place", file)
        holder.stdin.close()
    assert (code, f"process {holder.pid} has" in said) == (2, True)
    assert (file.read_bytes(), names(file)) == (DAMAGED, [NAME])


def test_a_file_of_another_kind_is_refused_in_one_sentence(file):
    file.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    code, said = run(file)
    assert (code, len(said.splitlines()), "expected a session file of Claude Code" in said) == (2, 1, True)


def test_a_folder_that_cannot_be_written_is_reported(file, monkeypatch):
    def refuse(*_arguments, **_options):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("reknit.pipeline.cli.repair.tempfile.NamedTemporaryFile", refuse)
    code, said = run(file)
    assert (code != 0, "session.jsonl" in said, names(file)) == (True, True, [NAME])


def test_the_version_is_used_for_new_lines(file):
    rollout = file.with_name(session_files.ROLLOUT)
    rollout.write_bytes(encoded(*session_files.codex()[1:]))
    assert run("--for", "0.98.0", rollout)[0] == 3
    first = json.loads(rollout.with_name(f"{rollout.name}.repaired").read_bytes().splitlines()[0])
    assert first["payload"]["cli_version"] == "0.98.0"
