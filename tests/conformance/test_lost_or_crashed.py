"""Input that crashed a target, was refused, or vanished without a fix: what comes of it on each target, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.testing.cases import read_case, run_case

HERE = Path(__file__).parent


def vectors():
    for line in (HERE / "lost_or_crashed.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        why = case.pop("why")
        for target in [case["to"]] if isinstance(case["to"], str) else case["to"]:
            yield pytest.param(case, target, why, id=f"{case['name']}-{target}")


@pytest.mark.parametrize(("vector", "target", "why"), list(vectors()))
def test_what_was_lost_or_crashed_comes_out_as_it_should(vector, target, why):
    case = read_case(json.dumps(vector).encode())
    found = run_case(case, target)
    assert found.failures == [], why
