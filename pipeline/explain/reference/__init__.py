"""The generated pages of ``docs/reference``: commands, library, topics, metrics and errors, each from the code itself.

They import every part of Reknit, so they need all extras.
"""

from __future__ import annotations

from reknit.pipeline.explain.reference.commands import commands_page
from reknit.pipeline.explain.reference.errors import errors_page
from reknit.pipeline.explain.reference.library import library_page
from reknit.pipeline.explain.reference.metrics import metrics_page
from reknit.pipeline.explain.reference.topics import topics_page


def reference_pages() -> dict[str, str]:
    """Return the pages, by their path under ``docs/``."""
    return {
        "reference/cli.md": commands_page(),
        "reference/library.md": library_page(),
        "reference/topics.md": topics_page(),
        "reference/metrics.md": metrics_page(),
        "reference/errors.md": errors_page(),
    }
