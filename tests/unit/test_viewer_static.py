"""The two libraries that pages load: in the wheel, as published, with their licences."""

import hashlib
import re
import subprocess
import tomllib
from pathlib import Path

from reknit.pipeline.viewer.addresses import STATIC, static_path

ROOT = Path(__file__).parents[2]
HERE = ROOT / "pipeline/viewer/static"
# SHA-256 of the files in the packages htmx.org 2.0.11 (0BSD) and uplot 1.6.32 (MIT).
PUBLISHED = {
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def is_own(name):
    return name.endswith((".css", ".js")) and ".min." not in name


def test_the_libraries_are_the_published_files():
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in HERE.iterdir()}
    assert {name: digest for name, digest in found.items() if not is_own(name)} == PUBLISHED


def test_pages_load_only_bundled_files():
    templates = "\n".join(file.read_text(encoding="utf-8") for file in (HERE.parent / "templates").rglob("*.html"))
    assert re.findall(r"""(?:src|href|action)=["']?(?:https?:)?//""", templates) == []
    assert re.findall(r"\son\w+=|\sstyle=|hx-on|<style|javascript:", templates) == []
    ours = [file.read_text(encoding="utf-8") for name, file in STATIC.items() if is_own(name)]
    assert re.findall(r"@import|url\(|https?://|\beval\b", "\n".join(ours)) == []
    assert len(ours) + len([name for name in PUBLISHED if ".min." in name]) == len(STATIC)


def test_a_files_address_changes_with_its_bytes():
    digest = hashlib.sha256((HERE / "viewer.js").read_bytes()).hexdigest()
    assert static_path("viewer.js") == f"/static/viewer.js?{digest[:12]}"


def test_a_wheel_contains_them():
    # A wheel has all files of a package except those that version control ignores.
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert wheel["wheel"]["only-include"] == ["reknit", "pipeline", "topics"]
    files = [str(file) for folder in ("static", "templates") for file in (HERE.parent / folder).rglob("*.*")]
    done = subprocess.run(["git", "check-ignore", "-v", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
