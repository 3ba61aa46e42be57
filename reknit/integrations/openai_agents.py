"""Repair in runs of the OpenAI Agents SDK."""

from reknit.pipeline.integrations.openai_agents import repair_input

__all__ = ["repair_input"]
