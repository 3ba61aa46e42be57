"""The ``reknit`` command."""
