"""The report of a run, and what in it is wrong."""

from __future__ import annotations

import datetime as dt
import platform
import statistics
import subprocess
from collections import Counter
from pathlib import Path

from msgspec import Struct, field
from soak.memory import growth
