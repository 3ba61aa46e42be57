"""Histories and tool calls as text: flattening for targets that take one prompt, and the JSON inside it."""
