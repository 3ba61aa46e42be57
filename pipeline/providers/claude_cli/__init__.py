"""The Claude CLI: its streams and its session files."""
