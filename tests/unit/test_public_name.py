"""``import reknit``: what it offers, what it loads, and what it says where a user's own files have our names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
import pipeline.testing
import reknit
import reknit.testing

ROOT = Path(__file__).parents[2]


def python(folder, *arguments, path=ROOT):
    """Run Python in a folder, with this one on its path."""
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
    """Run a program that stands in a folder of its own, as a user's does; ours is found behind it on the path."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    return python(folder, "program.py")


def write(path, text="VALUE = 1\n"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_it_offers_the_names_of_the_design():
    assert reknit.normalize is pipeline.normalize
    assert reknit.validate is pipeline.validate
    assert reknit.recover is pipeline.recover
    assert reknit.Session is pipeline.Session
    assert reknit.__version__ == pipeline.__version__
    assert set(dir(reknit)) == set(reknit.__all__)


def test_the_kit_is_offered_whole():
    assert reknit.testing.__all__ == pipeline.testing.__all__
    assert all(getattr(reknit.testing, name) is getattr(pipeline.testing, name) for name in reknit.testing.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'reknit' has no attribute 'normalise'"):
        _ = reknit.normalise


def test_importing_it_loads_nothing_that_is_not_asked_for(tmp_path):
    done = run(
        tmp_path,
        "import reknit, sys\n"
        "print(sorted(name for name in sys.modules if name.startswith(('pipeline.', 'topics.', 'msgspec'))))\n"
        "reknit.validate\n"
        "print('pipeline.rules' in sys.modules, 'pipeline.history' in sys.modules, 'faust' in sys.modules)\n",
    )
    assert done.stdout == "['pipeline.errors']\nTrue False False\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "place"),
    [("pipeline", "pipeline.py"), ("pipeline", "pipeline/__init__.py"), ("topics", "topics/__init__.py")],
)
@pytest.mark.parametrize("loaded", [False, True], ids=["found first", "loaded already"])
def test_a_users_own_file_of_our_name_is_named(tmp_path, name, place, loaded):
    theirs = write(tmp_path / place)
    done = run(tmp_path, f"import {name}\nimport reknit\n" if loaded else "import reknit\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: reknit cannot load its package '{name}': {theirs.resolve()} has the same name and comes first "
        "on the path; rename it, or start the program from another folder"
    )


def test_a_users_folder_that_is_no_package_does_no_harm(tmp_path):
    # Python prefers a package that it finds later on the path to a folder without __init__.py.
    write(tmp_path / "topics" / "notes.txt", "news\n")
    done = run(tmp_path, "import reknit\nprint(reknit.normalize([{'role': 'user', 'content': 'hi'}]).rejected)\n")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_package_that_is_missing_is_named(tmp_path):
    (tmp_path / "reknit").symlink_to(ROOT / "reknit")
    done = python(tmp_path, "-S", "-c", "import reknit", path=tmp_path)
    assert done.stderr.splitlines()[-1] == "ImportError: reknit is not installed whole: there is no package 'pipeline'"


def test_it_is_the_command_too(tmp_path):
    done = run(
        tmp_path, "import runpy, sys\nsys.argv[1:] = ['--version']\nrunpy.run_module('reknit', run_name='__main__')\n"
    )
    assert done.stdout == f"reknit, version {pipeline.__version__}\n"
