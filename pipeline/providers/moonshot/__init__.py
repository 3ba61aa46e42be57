"""Moonshot: a look-alike of OpenAI's Chat Completions API."""
