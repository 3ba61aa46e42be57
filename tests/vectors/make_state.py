"""Write the session state of this version for later versions to read: ``state_<version>.jsonl.gz``.

    python tests/vectors/make_state.py

Run it when a version is released, and never again for that version: the file records what that version wrote, and
``tests/unit/test_state_of_earlier_versions.py`` reads it for as long as the topics are called ``v1``. Each row is a
session of one stage that was saved midway: its changelog records as compaction leaves them, and the outputs of its
continuation.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from left_histories import turns
from left_streams import events

from reknit.pipeline import __version__


def main() -> None:
    path = Path(__file__).parent / f"state_{__version__.replace('.', '_')}.jsonl.gz"
    rows = [*turns(), *events()]
    lines = "".join(json.dumps(made, ensure_ascii=False) + "\n" for made in rows)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    sys.stdout.write(f"{path}: {len(rows)} sessions, {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
