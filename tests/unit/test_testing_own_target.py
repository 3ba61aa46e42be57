"""The example of docs/testing.md: a custom target, and the whole test that it needs."""

import pytest

from reknit.pipeline.providers.copilot_cli.writer import CopilotCli
from reknit.pipeline.registry import register, unregister
from reknit.pipeline.rules.base import Catalogue, WholeBody
from reknit.testing import Kit, broken_histories, healthy_histories

CATALOGUE = Catalogue("house-cli")
BLANK = CATALOGUE.rule(
    "HOUSE-01", "hard", "prompt: expected text", summary="The prompt is blank", repair="say something", source="our CLI"
)


class HouseCli(CopilotCli):
    name = "house-cli"
    tail_rule = "HOUSE-01"


class HouseRules(WholeBody):
    target = "house-cli"

    def validate(self, body, model=None):
        return [] if body.strip() else [BLANK.broken("")]


@pytest.fixture(autouse=True)
def house():
    register(HouseCli(), HouseRules(), CATALOGUE.rules)
    yield
    unregister("house-cli")


@pytest.mark.parametrize("sample", [*broken_histories(), *healthy_histories()], ids=lambda sample: sample.name)
def test_our_target_keeps_every_promise(sample):
    assert Kit("house-cli").check(sample.history).text
