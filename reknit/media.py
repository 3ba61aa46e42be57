"""Scaling images for policy ``media = shrink``; needs the extra ``media``."""

from reknit.pipeline.scaling import scale

__all__ = ["scale"]
