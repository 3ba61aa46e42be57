"""The Gemini CLI: its streams and its chat files."""
