"""``reknit demo``: the whole pipeline on recorded sessions, and what it did for each of them.

``recordings`` holds the fleet, ``report`` says what came of a session from the records alone, ``run`` starts a broker
and a worker and ties the two together. Nothing outside this package and ``pipeline.cli.demo`` imports it.
"""
