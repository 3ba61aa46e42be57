"""Property tests: the strategies are a module beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode finds no neighbours by itself
