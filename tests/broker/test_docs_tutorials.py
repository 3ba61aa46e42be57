"""The pages for the first hour that need a broker are run in an empty folder, with their output as they show it."""

import pipeline_lab as lab
import pytest
from page_shell import PageShell
from stand_in import Provider, serving

pytestmark = pytest.mark.broker

# Commands that show what a worker has done: before them, it must have done it.
LOOKING = ("reknit inspect", "reknit report", "reknit replay --id", "async for request")


@pytest.mark.parametrize(
    "page", ["start/topics.md", "tutorials/shadow.md", "tutorials/upgrade.md", "tutorials/fleet.md"]
)
async def test_a_page_runs_on_a_broker_as_it_is(page, broker, prefix, tmp_path, free_port):
    bootstrap = broker.bootstrap
    own, source = (f"{prefix}shadow.", f"{prefix}seen.") if page == "tutorials/shadow.md" else (prefix, None)

    async def before(text):
        if any(word in text for word in LOOKING):
            await lab.drained(bootstrap, own, source_prefix=source)

    provider, port = Provider(), free_port()
    provider.refusals = 0
    async with serving(provider) as url:
        shell = PageShell(
            tmp_path / "empty",
            {
                'bootstrap_servers="localhost:9092"': f'bootstrap_servers="{bootstrap}", prefix="{prefix}"',
                "https://api.anthropic.com/v1/messages --header": f"{url} --header",
                " seen.": f" {prefix}seen.",
                " shadow.": f" {prefix}shadow.",
                " replay.": f" {prefix}replay.",
                "reknit viewer": f"reknit viewer --port {port}",
                "127.0.0.1:8760": f"127.0.0.1:{port}",
            },
            {
                "ANTHROPIC_API_KEY": "a secret",
                "REKNIT_BOOTSTRAP_SERVERS": bootstrap,
                "REKNIT_PREFIX": prefix,
                "REKNIT_PARTITIONS": str(lab.PARTITIONS),
                "REKNIT_METRICS_PORT": "0",
            },
        )
        ran = await shell.run(page, before)
    assert ran.count("text") >= 1
    assert {len(body["messages"]) for body in provider.asked} == ({1, 3} if page == "tutorials/fleet.md" else set())
