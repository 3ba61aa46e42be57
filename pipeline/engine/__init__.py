"""The Faust worker: transport, transactions, state, and the process around them. The only place with I/O and await."""

from pipeline.engine.runtime import (
    Delivery,
    EngineConfig,
    EngineError,
    Metrics,
    NoMetrics,
    Scope,
    StageFactory,
    StartupError,
    Tuning,
    UpstreamChangedError,
)
from pipeline.engine.services import Progress
from pipeline.engine.worker import run_worker

__all__ = [
    "Delivery",
    "EngineConfig",
    "EngineError",
    "Metrics",
    "NoMetrics",
    "Progress",
    "Scope",
    "StageFactory",
    "StartupError",
    "Tuning",
    "UpstreamChangedError",
    "run_worker",
]
