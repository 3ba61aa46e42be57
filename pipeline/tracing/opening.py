"""The tracing of a program, as its settings and OpenTelemetry's variables say."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from reknit.pipeline.errors import InputError
from reknit.pipeline.settings import OtelSettings
from reknit.pipeline.tracing.calls import Tracing

log = logging.getLogger("reknit.tracing")

_INSTALL: Final = "spans are exported with an extra: pip install 'reknit[otel]'"
# Variables of OpenTelemetry's specification that name a collector.
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def open_tracing(settings: OtelSettings, prefix: str = "", env: Mapping[str, str] = os.environ) -> Tracing:
    """Return the tracing of a program, as configured.

    Args:
        settings: the configuration.
        prefix: of the inputs' topics.
        env: the environment. OpenTelemetry's own variables can name the collector, and switch spans off.

    Raises:
        InputError: ``otel_missing``: a setting asks for spans, and the extra is not installed.
    """
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
        return Tracing()
    if not settings.endpoint and not any(env.get(name) for name in _ENDPOINTS):
        return Tracing()
    if not _is_installed():
        if settings.endpoint:
            raise InputError("otel_missing", _INSTALL, path="otel.endpoint")
        # An orchestrator may set these variables for all programs, so they do not prevent a start.
        log.warning("OpenTelemetry is configured by the environment, and %s", _INSTALL)
        return Tracing()
    from reknit.pipeline.tracing.exporting import exporting_to  # noqa: PLC0415  the packages of an extra

    return exporting_to(settings.endpoint, prefix)


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None and (
            find_spec("opentelemetry.sdk.trace") is not None
        )
    except ModuleNotFoundError:  # of a parent package
        return False
