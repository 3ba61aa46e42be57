"""What the writers of both OpenAI APIs share."""
