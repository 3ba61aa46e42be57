"""Repair in LiteLLM."""

from reknit.pipeline.integrations.litellm import RepairCallback

__all__ = ["RepairCallback"]
