"""Streams of Gemini."""
