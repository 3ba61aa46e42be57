"""Repair in agents of Strands."""

from reknit.pipeline.integrations.strands import RepairHook

__all__ = ["RepairHook"]
