"""The check of the releases of Faust, aiokafka and mode.

The engine uses some parts of aiokafka that are not documented. ``tests/contracts`` tests what it relies on. These tests
passed with the pinned releases; an environment can have others.
"""

from __future__ import annotations

import importlib.metadata

from reknit.pipeline.engine.runtime import UpstreamChangedError

VERSIONS = {"faust-streaming": "0.15.3", "aiokafka": "0.14.0", "mode-streaming": "0.7.1"}


def verify_upstream() -> None:
    """Compare the installed versions with those that this engine was tested with.

    Raises:
        UpstreamChangedError: ``upstream_changed``, naming every package that differs.
    """
    different = [
        f"{package} is {installed(package)}, not {version}"
        for package, version in VERSIONS.items()
        if installed(package) != version
    ]
    if different:
        pins = " ".join(f"{package}=={version}" for package, version in VERSIONS.items())
        raise UpstreamChangedError(
            "upstream_changed", f"{'; '.join(different)}. Install what this release was tested with: pip install {pins}"
        )


def installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
