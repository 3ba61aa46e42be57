"""Property tests. The strategies are modules in this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not put this folder on the path
