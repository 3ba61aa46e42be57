"""Repair in agents of pydantic-ai."""

from reknit.pipeline.integrations.pydantic_ai import repair_history

__all__ = ["repair_history"]
