"""Repair in agents of Google's ADK."""

from reknit.pipeline.integrations.google_adk import repair_contents

__all__ = ["repair_contents"]
