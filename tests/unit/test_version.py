"""The version of a build names the release, or the commit between two releases."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import reknit

SOURCE = Path(__file__).parents[2] / "deploy" / "version.py"
NEXT = re.search(r'^NEXT = "(.*)"$', SOURCE.read_text(encoding="utf-8"), re.MULTILINE).group(1)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the file that determines the version, in its own folder."""
    monkeypatch.delenv("BUILD_VERSION", raising=False)
    (tmp_path / "deploy").mkdir()
    shutil.copy(SOURCE, tmp_path / "deploy")
    return tmp_path


def git(tree, *arguments):
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    environment = os.environ | who | {"GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(["git", *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(tree, words):
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "--allow-empty", "-m", words)
    return git(tree, "rev-parse", "--short=7", "HEAD")


def version_of(tree):
    return runpy.run_path(str(tree / "deploy" / "version.py"))["__version__"]


def test_between_releases_it_names_the_commit_and_counts_from_the_last(tree):
    git(tree, "init", "-q")
    first = commit(tree, "the next release gets its name")
    assert version_of(tree) == f"{NEXT}.dev0+g{first}"
    commit(tree, "one")
    second = commit(tree, "two")
    assert version_of(tree) == f"{NEXT}.dev2+g{second}"
    path = tree / "deploy" / "version.py"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert version_of(tree) == f"{NEXT}.dev2+g{second}.dirty"


def test_a_commit_with_the_tag_of_the_release_has_its_number(tree):
    git(tree, "init", "-q")
    other = commit(tree, "the next release gets its name")
    git(tree, "tag", "v9.9.9")
    assert version_of(tree) == f"{NEXT}.dev0+g{other}"
    git(tree, "tag", f"v{NEXT}")
    assert version_of(tree) == NEXT
    path = tree / "deploy" / "version.py"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert version_of(tree) == f"{NEXT}.dev0+g{other}.dirty"
    assert version_of(tree) != version_of_next_commit(tree)


def version_of_next_commit(tree):
    commit(tree, "after the release")
    return version_of(tree)


def test_without_a_repository_it_is_the_builders_version(tree, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tree.parent))
    assert version_of(tree) == f"{NEXT}.dev0"
    monkeypatch.setenv("BUILD_VERSION", "1.2.3")
    assert version_of(tree) == "1.2.3"


def test_an_enclosing_repository_is_ignored(tree):
    git(tree, "init", "-q")
    commit(tree, "somebody else's")
    inner = tree / "vendored"
    shutil.copytree(tree / "deploy", inner / "deploy")
    assert version_of(inner) == f"{NEXT}.dev0"


def test_the_package_has_the_installed_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+(\+g[0-9a-f]{7}(\.dirty)?)?)?", reknit.__version__)
