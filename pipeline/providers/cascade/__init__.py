"""Cascade: tools emulated in text, for models without tool calls."""
