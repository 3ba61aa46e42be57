"""Logging: one line an event on stderr, as text or JSON. Content never gets into it."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

# They build a record for each message even where none is shown, and say at INFO what only they care about.
QUIET = ("faust", "aiokafka", "mode")


def configure_logs(level: str = "info", form: Literal["text", "json"] = "text") -> None:
    """Set up the root logger; call it once, in a process of our own."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
