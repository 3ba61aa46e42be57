"""All tests: Hypothesis makes the same examples in every run, so that a change is judged by what it changed.

With REKNIT_EXAMPLES set it looks for new ones; many property tests then try that many times as many.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "reknit",
    deadline=None,
    derandomize="REKNIT_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("reknit")
