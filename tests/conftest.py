"""Settings of all tests. Hypothesis makes the same examples in every run, so a change is judged by its own effect.

REKNIT_EXAMPLES makes it look for new examples. Many property tests then multiply their number of examples by it.
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
