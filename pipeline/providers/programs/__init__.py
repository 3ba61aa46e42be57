"""Agent programs whose request is a text, or lines of JSON."""
