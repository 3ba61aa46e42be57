"""The Codex CLI: its streams and its rollout files."""
