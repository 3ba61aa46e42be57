"""Streams of OpenAI's chat and what speaks like it."""
