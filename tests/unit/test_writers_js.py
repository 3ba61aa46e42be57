"""Messages that are written for the AI SDK are loaded by the AI SDK itself."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from framework_cases import cases

import reknit

SCRIPT = Path(__file__).parents[1] / "js" / "load_messages.mjs"
SHAPES = ("ai-sdk-model", "ai-sdk-ui")


def _missing():
    if shutil.which("node") is None:
        return "needs Node.js 20"
    return "" if (SCRIPT.parent / "node_modules").is_dir() else "needs the packages of tests/js: run `make sdks`"


if _missing() and os.environ.get("REQUIRE_NODE"):
    raise RuntimeError(_missing())
pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


def load(rows):
    """Return the SDK's error for each row of a shape and messages, None where it takes them."""
    given = "".join(json.dumps({"to": to, "messages": messages}) + "\n" for to, messages in rows)
    done = subprocess.run(["node", str(SCRIPT)], input=given, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_sdk_loads_every_sample_of_every_framework():
    rows = [(to, reknit.convert(case["text"], to=to).messages) for case in cases() if "expect" in case for to in SHAPES]
    assert len(rows) > 200
    assert load(rows) == [None] * len(rows)


def test_the_sdk_refuses_what_is_not_of_its_shape():
    wrong = [("ai-sdk-model", [{"role": "tool", "content": "x"}]), ("ai-sdk-ui", [{"role": "user", "content": "x"}])]
    assert all(load(wrong))
