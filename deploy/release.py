"""Build the archives of a release, check them, and write its notes.

``python deploy/release.py [--to build/release] [--notes-only]`` builds the sdist, and the wheel from the sdist, twice,
and requires the same bytes. It installs each archive into an empty environment, repairs a history with it, and writes
the digests and the section of the changelog next to the archives. The wheel has an SBOM (PEP 770) of itself and of the
packages that were installed with it in that check. Nothing is uploaded. Needs the dependency group `release`.
"""

# ruff: noqa: INP001, S603 - a script that a maintainer runs; it starts Python and git with its own arguments

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SBOM = "sbom/reknit.cdx.json"
BROKEN = [
    {"role": "user", "content": "List the files."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "ls", "input": {}}]},
]
MENDED = 3  # the exit code of a repaired history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "build/release", help="the folder for the archives")
    parser.add_argument("--notes-only", action="store_true", help="print the notes, and build nothing")
    given = parser.parse_args()
    version = run(sys.executable, "-c", "import version; print(version.__version__)", cwd=ROOT / "deploy").strip()
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if given.notes_only:
        sys.stdout.write(notes)
        return
    if version.endswith(".dirty"):
        sys.exit("the work tree has changes: commit them first")
    shutil.rmtree(given.to, ignore_errors=True)
    given.to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        archives = built_twice(version, Path(scratch))
        for archive in archives:
            check(archive, version, Path(scratch))
            shutil.copy2(archive, given.to)
    (given.to / "SHA256SUMS").write_text(
        "".join(f"{sha256(archive)}  {archive.name}\n" for archive in sorted(given.to.iterdir())), encoding="utf-8"
    )
    (given.to / "NOTES.md").write_text(notes, encoding="utf-8")
    sys.stdout.write(f"{version}: {', '.join(path.name for path in sorted(given.to.iterdir()))} in {given.to}\n")


def notes_of(changelog: str, version: str) -> str:
    """Return the section of a version; between releases, the section of what is not released.

    Raises:
        SystemExit: the changelog has no such section.
    """
    name = "Unreleased" if ".dev" in version else version
    found = re.search(rf"^## \[{re.escape(name)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section [{name}]")
    return f"# Reknit {version}\n\n{found[1].strip()}\n"


def built_twice(version: str, folder: Path) -> list[Path]:
    """Return the sdist and the wheel.

    Raises:
        SystemExit: two builds of one commit differ.
    """
    committed = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    sbom = sbom_of(version, committed, folder)
    first, second = (built(version, committed, sbom, folder / name) for name in ("first", "second"))
    for one, other in zip(first, second, strict=True):
        if sha256(one) != sha256(other):
            sys.exit(f"{one.name}: two builds differ")
    return first


def built(version: str, committed: str, sbom: bytes, folder: Path) -> list[Path]:
    """Build the sdist of the last commit and the wheel from the sdist, with modification times of the commit."""
    source = unpacked(run_bytes("git", "archive", "--format=tar", "HEAD", cwd=ROOT), folder / "source")
    for package in ("pipeline", "topics"):
        if not (source / "reknit" / package).is_symlink():
            sys.exit(f"reknit/{package} is not a symlink in the archive of the commit")
    (source / SBOM).parent.mkdir()
    (source / SBOM).write_bytes(sbom)
    environment = {"BUILD_VERSION": version, "SOURCE_DATE_EPOCH": committed}
    sdist = build("sdist", source, folder, environment)
    (inside,) = unpacked(sdist.read_bytes(), folder / "sdist").iterdir()
    return [sdist, build("wheel", inside, folder, environment)]


def build(kind: str, source: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    program = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    return folder / run(sys.executable, "-c", program, str(folder), cwd=source, **environment).splitlines()[-1]


def unpacked(archive: bytes, folder: Path) -> Path:
    folder.mkdir(parents=True)
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        with tarfile.open(fileobj=file) as content:
            content.extractall(folder, filter="data")
    return folder


def sbom_of(version: str, committed: str, folder: Path) -> bytes:
    """Return the CycloneDX document of the package and of what pip installs with it, without its extras.

    The packages and their versions are those of the day of the release. The time stamp is the commit's.
    """
    python = environment_in(folder / "bom")
    project = folder / "bom/project"
    unpacked(run_bytes("git", "archive", "--format=tar", "HEAD", cwd=ROOT), project)
    run(python, "-m", "pip", "install", "--quiet", str(project), cwd=folder, BUILD_VERSION=version)
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools", cwd=folder)
    written = folder / "bom.json"
    cyclonedx = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "-o", str(written))
    run(*cyclonedx, python, cwd=folder, SOURCE_DATE_EPOCH=committed)
    document = json.loads(written.read_text(encoding="utf-8"))
    described = [each for each in document["components"] if each["name"] == "reknit"]
    document["components"] = [each for each in document["components"] if each not in described]
    # The place where it was installed from is a folder of this machine.
    described = [{key: value for key, value in each.items() if key != "externalReferences"} for each in described]
    document["metadata"]["component"] = described[0]
    return json.dumps(document, indent=1, sort_keys=True).encode()


def environment_in(folder: Path) -> str:
    """Create an empty environment and return its Python."""
    venv.create(folder, with_pip=True)
    return str(folder / "bin/python")


def check(archive: Path, version: str, folder: Path) -> None:
    """Install an archive into an empty environment, and repair a history with it.

    Raises:
        SystemExit: the installed command does not give the expected version or result.
    """
    python = environment_in(folder / f"check-{archive.suffix[1:]}")
    run(python, "-m", "pip", "install", "--quiet", str(archive), cwd=folder, BUILD_VERSION=version)
    command = Path(python).with_name("reknit")
    if run(str(command), "--version", cwd=folder) != f"reknit, version {version}\n":
        sys.exit(f"{archive.name}: another version")
    done = subprocess.run(
        [command, "normalize", "--report"], input=json.dumps(BROKEN).encode(), capture_output=True, check=False
    )
    fixes = [fix["code"] for fix in json.loads(done.stdout)["fixes"]] if done.returncode == MENDED else []
    if fixes != ["result_synthesised"]:
        sys.exit(f"{archive.name}: ended with {done.returncode}: {done.stderr.decode()}")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*command: str, cwd: Path, **environment: str) -> str:
    return run_bytes(*command, cwd=cwd, **environment).decode()


def run_bytes(*command: str, cwd: Path, **environment: str) -> bytes:
    """Run a program and return its output; end with its words if it fails."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} ended with {done.returncode}:\n{done.stderr.decode()}")
    return done.stdout


if __name__ == "__main__":
    main()
