"""What comes of single histories on each target, and why.

One file holds what crashed a target, was refused, or vanished without a fix; the others what a provider accepts and is
to come out as it went in, and what only nearly is such.
"""

import json
from pathlib import Path

import pytest

from pipeline.testing import read_case, run_case

HERE = Path(__file__).parent
FILES = ("lost_or_crashed.jsonl", "harmless_anthropic_converse.jsonl", "harmless_openai.jsonl")


def vectors():
    lines = [line for name in FILES for line in (HERE / name).read_text(encoding="utf-8").splitlines()]
    for line in lines:
        case = json.loads(line)
        why = case.pop("why")
        for target in [case["to"]] if isinstance(case["to"], str) else case["to"]:
            yield pytest.param(case, target, why, id=f"{case['name']}-{target}")


@pytest.mark.parametrize(("vector", "target", "why"), list(vectors()))
def test_what_comes_of_a_history_is_what_should(vector, target, why):
    case = read_case(json.dumps(vector).encode())
    found = run_case(case, target)
    assert found.failures == [], why
