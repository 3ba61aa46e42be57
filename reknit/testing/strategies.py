"""Hypothesis strategies for histories and policies: see ``pipeline.testing.strategies``. Needs hypothesis."""

from pipeline.testing.strategies import healthy_histories, histories, policies

__all__ = ["healthy_histories", "histories", "policies"]
