"""The conformance kit: see ``reknit.pipeline.testing``, whose public names these are."""

from reknit.pipeline.testing import (
    CallableKit,
    Case,
    CaseResult,
    ConformanceError,
    Kit,
    Sample,
    broken_histories,
    healthy_histories,
    read_case,
    run_case,
)

__all__ = [
    "CallableKit",
    "Case",
    "CaseResult",
    "ConformanceError",
    "Kit",
    "Sample",
    "broken_histories",
    "healthy_histories",
    "read_case",
    "run_case",
]
