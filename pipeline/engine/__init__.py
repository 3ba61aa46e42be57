"""The Faust worker: transport, transactions, state and process. The only part with I/O and await."""

from reknit.pipeline.engine.runtime import (
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
from reknit.pipeline.engine.services import Progress
from reknit.pipeline.engine.worker import run_worker

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
