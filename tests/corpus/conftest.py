"""Corpus tests: shared code is a module in this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode finds no neighbours by itself
