"""The bytes of a request do not depend on the order of sets, which differs between two processes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from reknit.pipeline import normalize
from reknit.pipeline.errors import ReknitError
from reknit.pipeline.registry import TARGETS

HERE = Path(__file__)
# Histories with members of every provider, and with every kind of damage.
FILES = ("sdk_members", "broken_histories", "structure", "audited_histories")
SEEDS = ("1", "2", "3")


def outcomes():
    """Yield for each history of the vectors and each target the digest of its request and fixes, or its error."""
    for name in FILES:
        for line in HERE.with_name(f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            vector = msgspec.json.decode(line)
            history = vector.get("messages", vector.get("history", vector.get("document")))
            for target in TARGETS if history is not None else ():
                try:
                    done = normalize(history, target)
                except ReknitError as error:
                    yield name, vector["name"], target, error.code
                    continue
                fixes = msgspec.json.encode([(fix.code, fix.path, fix.after) for fix in done.fixes])
                yield name, vector["name"], target, hashlib.sha256(done.unjudged + fixes).hexdigest()


def test_requests_are_the_same_bytes_under_every_hash_seed():
    found = [
        subprocess.run(
            [sys.executable, str(HERE)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for seed in SEEDS
    ]
    assert len(found[0]) > 500
    different = {row for others in found[1:] for row, other in zip(found[0], others, strict=True) if row != other}
    assert different == set()


if __name__ == "__main__":
    for outcome in outcomes():
        sys.stdout.write(f"{outcome}\n")
