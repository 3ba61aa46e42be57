"""Streams: raw provider events in, items out, with what the stream dropped recovered from what came later."""
