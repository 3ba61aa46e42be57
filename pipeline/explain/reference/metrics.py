"""The page of metrics: every metric of the worker and of the gateway, with its type and its labels."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry

from reknit.pipeline.explain.reference.markdown import WRITTEN, code, prose, table
from reknit.pipeline.metrics import Metrics
from reknit.pipeline.serve.metrics import GatewayMetrics

_INTRO = (
    "A worker and the gateway serve these at `/metrics` on `127.0.0.1:9464` (`metrics_port`), with the label "
    "`pipeline` (the prefix) on each of them. No label has content of a session. The alerts on them have "
    "[runbooks](../operating.md)."
)


def metrics_page() -> str:
    """Return ``docs/reference/metrics.md``."""
    head = ("metric", "type", "labels", "meaning")
    lines = ["# Metrics", "", WRITTEN, "", _INTRO, "", "## Worker", ""]
    lines += table(head, _rows(Metrics(CollectorRegistry()).registry))
    lines += ["## Gateway", "", *table(head, _rows(GatewayMetrics().registry))]
    return "\n".join(lines).rstrip() + "\n"


def _rows(registry: CollectorRegistry) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each metric of Reknit.

    The labels of a metric without samples are only in a private member: it has none before something happens.
    """
    collectors = set(registry._names_to_collectors.values())  # noqa: SLF001  as said above
    named = [each for each in collectors if getattr(each, "_name", "").startswith("reknit_")]
    for each in sorted(named, key=lambda metric: str(getattr(metric, "_name", ""))):
        kind = str(getattr(each, "_type", ""))
        name = getattr(each, "_name", "") + ("_total" if kind == "counter" else "")
        labels = ", ".join(map(code, getattr(each, "_labelnames", ())))
        yield code(name), kind, labels, prose(str(getattr(each, "_documentation", "")))
