"""``import reknit``: its names, the modules that it loads, and projects with a `pipeline` of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import reknit
import reknit.pipeline.testing
import reknit.testing
from reknit import pipeline

ROOT = Path(__file__).parents[2]


def python(folder, *arguments, path=ROOT):
    """Run Python in a folder, with this folder on its path."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def run(folder, program):
    """Run a program in its own folder, as a user does; this project comes after that folder on the path."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    return python(folder, "program.py")


def write(path, text="VALUE = 1\n"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_it_has_the_names_of_the_design():
    assert reknit.normalize is pipeline.normalize
    assert reknit.validate is pipeline.validate
    assert reknit.recover is pipeline.recover
    assert reknit.Session is pipeline.Session
    assert reknit.__version__ == pipeline.__version__
    assert set(dir(reknit)) == set(reknit.__all__)


def test_the_kit_is_exported_completely():
    assert reknit.testing.__all__ == pipeline.testing.__all__
    assert all(getattr(reknit.testing, name) is getattr(pipeline.testing, name) for name in reknit.testing.__all__)


def test_a_missing_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'reknit' has no attribute 'normalise'"):
        _ = reknit.normalise


def test_importing_it_loads_only_requested_modules(tmp_path):
    done = run(
        tmp_path,
        "import reknit, sys\n"
        "print(sorted(name for name in sys.modules if name.startswith(('reknit.', 'msgspec'))))\n"
        "reknit.validate\n"
        "print([name in sys.modules for name in ('reknit.pipeline.rules', 'reknit.pipeline.history', 'faust')])\n",
    )
    assert done.stdout == "['reknit.pipeline', 'reknit.pipeline.errors']\n[True, False, False]\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "places",
    [["pipeline.py", "topics.py"], ["pipeline/__init__.py", "topics/__init__.py"]],
    ids=["modules", "packages"],
)
def test_a_project_may_have_its_own_pipeline_and_topics(tmp_path, places):
    for place in places:
        write(tmp_path / place)
    names = [Path(place).parts[0].removesuffix(".py") for place in places]
    program = (
        f"import {', '.join(names)}\n"
        "import reknit.client\n"
        "print(reknit.normalize([{'role': 'user', 'content': 'hi'}]).rejected)\n"
        f"print({', '.join(f'{name}.__spec__.origin' for name in names)})\n"
    )
    done = run(tmp_path, program)
    origins = " ".join(str(tmp_path / place) for place in places)
    assert (done.stdout, done.stderr) == (f"False\n{origins}\n", "")


def test_it_is_the_command_too(tmp_path):
    done = run(
        tmp_path, "import runpy, sys\nsys.argv[1:] = ['--version']\nrunpy.run_module('reknit', run_name='__main__')\n"
    )
    assert done.stdout == f"reknit, version {pipeline.__version__}\n"
