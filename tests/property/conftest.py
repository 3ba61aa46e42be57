"""Property tests: the strategies are a module beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode finds no neighbours by itself

settings.register_profile("reknit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("reknit")
