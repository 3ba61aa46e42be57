"""Parts that the writers of both OpenAI APIs share."""
