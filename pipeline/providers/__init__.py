"""One folder for each provider and agent program.

``reader`` reads histories in its shape, ``writer`` writes its requests, ``stream`` decodes its streams, and ``rules``
predicts what it refuses. ``rules`` imports nothing of the other three.
"""
