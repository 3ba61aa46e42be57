"""Sessions: histories under repair with all that requests need of them, and one history made into one request."""

from pipeline.session.request import Normalized
from pipeline.session.session import Session, normalize

__all__ = ["Normalized", "Session", "normalize"]
