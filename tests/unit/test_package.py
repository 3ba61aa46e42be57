"""The archives of a release: the sdist and the wheel have the files of the repository, and the wheel works."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("reknit/", "pipeline/", "topics/")


def run(*command, cwd, **environment):
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(kind, source, folder):
    """Build an archive as pip does and return its path."""
    folder.mkdir()
    program = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    name = run(sys.executable, "-c", program, str(folder), cwd=source, BUILD_VERSION="9.9").splitlines()[-1]
    return folder / name


@pytest.fixture(scope="module")
def tracked():
    """Return the packages' files in git. The two symlinks point to folders that are listed themselves."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    listed = run("git", "ls-files", *PACKAGES, cwd=ROOT).splitlines()
    return {path for path in listed if not (ROOT / path).is_symlink()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return built("sdist", ROOT, tmp_path_factory.mktemp("archives") / "sdist")


def unpacked(sdist, folder):
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """A wheel that is built from the sdist, as a distribution builds it."""
    folder = tmp_path_factory.mktemp("from-sdist")
    return built("wheel", unpacked(sdist, folder), folder / "wheel")


def test_the_sdist_has_every_file_of_the_packages(sdist, tracked):
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert {name for name in names if name.startswith(PACKAGES)} == tracked


def test_the_wheel_has_every_file_of_the_packages_below_one_name(wheel, tracked):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name if name.startswith("reknit/") else f"reknit/{name}" for name in tracked}


def test_the_wheel_has_the_sbom_of_its_sdist(sdist, wheel, tmp_path):
    source = unpacked(sdist, tmp_path / "source")
    (source / "sbom").mkdir()
    (source / "sbom/reknit.cdx.json").write_text("{}")
    with zipfile.ZipFile(built("wheel", source, tmp_path / "wheel")) as archive, zipfile.ZipFile(wheel) as without:
        assert set(archive.namelist()) - set(without.namelist()) == {"reknit-9.9.dist-info/sboms/reknit.cdx.json"}


def test_the_wheel_works_next_to_a_project_with_its_own_pipeline_and_topics(wheel, tmp_path):
    installed, project = tmp_path / "installed", tmp_path / "project"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(installed))
    run(*pip, str(wheel), cwd=tmp_path)
    project.mkdir()
    (project / "pipeline.py").write_text("NAME = 'a pipeline'\n")
    (project / "topics.py").write_text("NAME = 'topics'\n")
    (project / "program.py").write_text(
        "import pipeline, topics, reknit, reknit.client\n"
        "from reknit.topics.cluster import wanted\n"
        "print(pipeline.NAME, topics.NAME, reknit.__file__, reknit.__version__)\n"
        "print(reknit.normalize([{'role': 'user', 'content': 'hi'}]).rejected)\n"
    )
    printed = run(sys.executable, "program.py", cwd=project, PYTHONPATH=str(installed))
    assert printed == f"a pipeline topics {installed}/reknit/__init__.py 9.9\nFalse\n"
    version = run(sys.executable, "-m", "reknit", "--version", cwd=project, PYTHONPATH=str(installed))
    assert version == "reknit, version 9.9\n"
