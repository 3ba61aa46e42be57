"""Locks the image's packages: ``python deploy/image/lock.py`` writes the newest versions that pyproject.toml allows.

A line is a package with the digests of its wheels for the image's Python on Linux; pip takes no others. It needs uv
(``pip install uv``) and a package index; tests/unit/test_house_compose.py says when to run it again.
"""

# ruff: noqa: INP001, S603 - a script by itself, not a package; it starts uv with its own arguments
from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

HERE = Path(__file__).parent
PYPROJECT = HERE.parents[1] / "pyproject.toml"
PYTHON = "3.12"
PROCESSOR = "x86_64"  # Faust has no wheels for others
EXTRAS = ("all",)
IMAGE = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "sys_platform": "linux", "os_name": "posix"}
EVERYWHERE = "python_version >= '3'"


def declared() -> dict[str, list[str]]:
    """The contents of each lock: the runtime packages, and those that build the wheel."""
    pyproject = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    project = pyproject["project"]
    found = [*project["dependencies"], *of_extras(EXTRAS, project["optional-dependencies"])]
    return {
        "requirements.txt": list(dict.fromkeys(found)),
        "build-requirements.txt": pyproject["build-system"]["requires"],
    }


def of_extras(names: Iterable[str], extras: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the requirements of extras; an extra may include others of the project."""
    for requirement in (each for name in names for each in extras[name]):
        if requirement.startswith("reknit["):
            yield from of_extras(Requirement(requirement).extras, extras)
        else:
            yield requirement


def locked(requirements: Sequence[str]) -> str:
    command = ["uv", "pip", "compile", "--quiet", "--format", "pylock.toml", "--python-version", PYTHON]
    command += ["--universal", "--only-binary", ":all:", "-"]
    done = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=True)
    packages = tomllib.loads(done.stdout)["packages"]
    return "".join(line(package) for package in packages if Marker(package.get("marker", EVERYWHERE)).evaluate(IMAGE))


def line(package: dict[str, Any]) -> str:
    wheels = [wheel for wheel in package["wheels"] if is_taken(wheel["url"].rsplit("/", 1)[-1])]
    digests = sorted(wheel["hashes"]["sha256"] for wheel in wheels)
    return f"{package['name']}=={package['version']} {' '.join(f'--hash=sha256:{digest}' for digest in digests)}\n"


def is_taken(file: str) -> bool:
    """Whether pip in the image would take the wheel."""
    python = f"cp{PYTHON.replace('.', '')}"
    return any(
        (tag.interpreter in {python, "py3"} or tag.abi == "abi3")
        and (tag.platform == "any" or (tag.platform.startswith("manylinux") and tag.platform.endswith(PROCESSOR)))
        and tag.abi in {python, "abi3", "none"}
        for tag in parse_wheel_filename(file)[3]
    )


if __name__ == "__main__":
    for name, requirements in declared().items():
        (HERE / name).write_text(f"# Made by {Path(__file__).name}.\n{locked(requirements)}", encoding="utf-8")
        sys.stderr.write(f"wrote {name}\n")
