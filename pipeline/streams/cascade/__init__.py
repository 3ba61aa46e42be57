"""Streams of a planner that writes its calls into its text."""
