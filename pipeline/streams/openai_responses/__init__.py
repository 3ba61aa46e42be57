"""Streams of OpenAI's Responses."""
