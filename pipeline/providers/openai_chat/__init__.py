"""OpenAI: the Chat Completions API."""
