"""Parts that both OpenAI APIs share, of their writers and of their rules."""
