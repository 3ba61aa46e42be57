"""Histories and tool calls as text: flattening for targets that take one prompt, tools told of and called in text.

The filters for what a planner says take it piece by piece: redaction, identity and tool calls.
"""
