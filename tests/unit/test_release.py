"""The notes of a release are a section of the changelog."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHANGELOG = """# Changelog

## [Unreleased]

- Something new.

## [0.2.0] - 2026-01-01

- Something old.

### Fixed

- More.

## [0.1.0] - 2025-01-01
"""


@pytest.fixture(scope="module")
def notes_of():
    return runpy.run_path(str(ROOT / "deploy/release.py"))["notes_of"]


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        ("0.2.0", "# Reknit 0.2.0\n\n- Something old.\n\n### Fixed\n\n- More.\n"),
        ("0.3.0.dev4+g1234567", "# Reknit 0.3.0.dev4+g1234567\n\n- Something new.\n"),
        ("0.1.0", "# Reknit 0.1.0\n\n\n"),
    ],
)
def test_the_notes_are_the_section_of_the_version(notes_of, version, notes):
    assert notes_of(CHANGELOG, version) == notes


def test_a_version_without_a_section_has_no_notes(notes_of):
    with pytest.raises(SystemExit, match=r"no section \[0\.4\.0\]"):
        notes_of(CHANGELOG, "0.4.0")


def test_the_changelog_has_notes_for_this_commit(notes_of):
    assert "### Added" in notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), "9.9.9.dev1")
