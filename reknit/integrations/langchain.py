"""Repair in agents of LangChain and LangGraph."""

from reknit.pipeline.integrations.langchain import RepairMiddleware

__all__ = ["RepairMiddleware"]
