"""A conformance kit: the promises that our own targets keep, to be checked on a target or a function of one's own.

``Kit`` checks a target by its name, one of ours or one that ``pipeline.registry`` was told of. ``CallableKit`` checks
any function from a history to a request body. Histories come from anywhere: ``broken_histories()`` and
``healthy_histories()`` are a small set of ours, and ``pipeline.testing.strategies`` makes any number of them where
hypothesis is installed. A promise that does not hold raises ``ConformanceError``, which says what differs, and where.
"""

from pipeline.testing.callables import CallableKit
from pipeline.testing.cases import Case, CaseResult, Sample, broken_histories, healthy_histories, read_case, run_case
from pipeline.testing.kit import Kit
from pipeline.testing.promises import ConformanceError

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
