"""Predict the provider's 400: a re-statement of each target's rules, apart from everything that writes requests."""
