"""What OpenAI's two APIs and the servers that speak like them have in common."""
