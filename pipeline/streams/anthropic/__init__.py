"""Streams of Anthropic's Messages API."""
