"""Hypothesis strategies for histories and policies: see ``reknit.pipeline.testing.strategies``. Needs hypothesis."""

from reknit.pipeline.testing.strategies import healthy_histories, histories, policies

__all__ = ["healthy_histories", "histories", "policies"]
