"""Spans for OpenTelemetry (extra ``otel``).

A span has no content of a conversation, only places, counts and codes. Outputs do not depend on spans: records have the
trace of the record that caused them (``reknit.topics.trace``), never the id of a span, which is random.
"""
