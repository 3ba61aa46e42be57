"""Streams of the Claude CLI's stream-json."""
