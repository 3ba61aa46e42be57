"""Repair inside of the process of a framework or SDK. A module imports nothing that its framework does not have."""

from reknit.pipeline.integrations.transport import AsyncRepairTransport, RepairTransport

__all__ = ["AsyncRepairTransport", "RepairTransport"]
