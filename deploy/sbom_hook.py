"""Adds the SBOM of a release to a wheel (PEP 770), where ``deploy/release.py`` has written one."""

# ruff: noqa: INP001 - a script that the build runs, not a package

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SBOM = "sbom/reknit.cdx.json"


class SbomHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  the interface's
        if (Path(self.root) / SBOM).is_file():
            build_data["sbom_files"].append(SBOM)
