"""The version of a build: of a release its number, between releases the next number with the commit that was built.

Requests, segments and dead letters carry it, and outputs are byte-identical within one version only, so two commits
never share one. Read when a wheel or an editable install is made (``[tool.hatch.version]``), never when it runs.
"""

# ruff: noqa: INP001, S603 - a script that the build runs, not a package; it starts git with its own arguments

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# The next release. The commit of a release has the tag `v` and this number.
NEXT = "0.2.0"

_ROOT = Path(__file__).parents[1]


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(_ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build_version() -> str:
    """The version as PEP 440 spells it: ``0.2.0``, ``0.2.0.dev7+g1a2b3c4``, ``….dirty`` with changes in the work tree.

    Seven is the number of commits since the next release got its name. ``BUILD_VERSION`` is the version where there is
    no repository, as in an image; without either it is ``0.2.0.dev0``.
    """
    if given := os.environ.get("BUILD_VERSION"):
        return given
    try:
        if Path(_git("rev-parse", "--show-toplevel")) != _ROOT:
            return f"{NEXT}.dev0"  # another project's repository, in which this was unpacked
        named = _git("log", "-1", "--format=%H", f'-SNEXT = "{NEXT}"', "--", "deploy/version.py")
        since = _git("rev-list", "--count", f"{named}..HEAD" if named else "HEAD")
        commit = _git("rev-parse", "--short=7", "HEAD")
        changed = ".dirty" if _git("status", "--porcelain", "--untracked-files=no") else ""
        if not changed and f"v{NEXT}" in _git("tag", "--points-at", "HEAD").split():
            return NEXT
    except (OSError, subprocess.CalledProcessError):
        return f"{NEXT}.dev0"
    return f"{NEXT}.dev{since}+g{commit}{changed}"


__version__ = build_version()
