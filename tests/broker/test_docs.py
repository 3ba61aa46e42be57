"""The examples of README and pages are run, block by block, against a pipeline."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pipeline_lab as lab
import pytest
from stand_in import Provider, serving

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("feeding.md", "consuming.md", "items.md", "operating.md", "security.md", "configuration.md", "data.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_every_block_of_the_pages_runs(broker, prefix, tmp_path, free_port):
    await run("operating.md", "sh", "reknit topics apply", broker.bootstrap, prefix)
    with lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        await fleet.start().ready(60)
        ran = [await run(page, *block, broker.bootstrap, prefix) for page in PAGES for block in blocks(page)]
    assert len(ran) >= 5


def blocks(page):
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


async def test_the_readmes_way_with_a_broker_is_run_line_by_line(broker, prefix, tmp_path):
    """Unchanged, except for the broker's address, the CLI, which is replaced by a recorded run, and the provider."""
    (block,) = [text for _, text in BLOCK.findall((ROOT / "README.md").read_text("utf-8")) if "make kafka" in text]
    _, _, apply, worker, events, turns, inspect, viewer, screens, send = block.replace("\\\n", " ").splitlines()
    (tmp_path / "claude").write_text(f"#!/bin/sh\ncat {ROOT}/examples/run.jsonl\n")
    (tmp_path / "claude").chmod(0o700)
    provider = Provider()
    provider.refusals = 0
    async with serving(provider) as url:
        typed = Typed(broker.bootstrap, prefix, tmp_path, url)
        try:
            await typed.run(apply)
            await typed.start(worker)
            await typed.run(events)
            await typed.run(turns)
            await typed.start(send)
            async with asyncio.timeout(240):
                await provider.arrived.acquire()
            assert b"provider.requests.v1" in await typed.run(inspect)
            await typed.start(viewer)
            await typed.start(screens)
        finally:
            await typed.end()
    (body,) = provider.asked
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert provider.headers["x-api-key"] == "a secret"
    assert provider.headers["anthropic-version"] == "2023-06-01"


class Typed:
    """Lines typed into a shell in a folder with the README's files; some run until they are ended."""

    def __init__(self, bootstrap, prefix, directory, url):
        self._said = {"localhost:9092": bootstrap, "https://api.anthropic.com/v1/messages": url}
        self._environment = environment(bootstrap, prefix) | {
            "PATH": f"{directory}:{environment(bootstrap, prefix)['PATH']}",
            "ANTHROPIC_API_KEY": "a secret",
            "REKNIT_METRICS_PORT": "0",
            "REKNIT_STATE_DIR": str(directory / "state"),
        }
        self._going_on = []

    async def start(self, line):
        for shown, real in self._said.items():
            line = line.replace(shown, real)
        process = await asyncio.create_subprocess_shell(
            f"exec {line}" if "|" not in line else line, cwd=ROOT, env=self._environment, stdout=-1, stderr=-2
        )
        self._going_on.append(process)
        return process

    async def run(self, line):
        process = await self.start(line)
        self._going_on.remove(process)
        async with asyncio.timeout(240):
            said, _ = await process.communicate()
        assert process.returncode == 0, f"{line}\n{said.decode()}"
        return said

    async def end(self):
        for process in reversed(self._going_on):
            process.terminate()
            async with asyncio.timeout(240):
                await process.communicate()


async def run(page, language, text, bootstrap, prefix):
    text = text.replace('"localhost:9092"', f'"{bootstrap}", prefix="{prefix}"')
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    process = await asyncio.create_subprocess_exec(*command, env=environment(bootstrap, prefix), stdout=-1, stderr=-2)
    async with asyncio.timeout(240):
        said, _ = await process.communicate()
    assert process.returncode == 0, f"{page}:\n{text}\n{said.decode()}"


def environment(bootstrap, prefix):
    return os.environ | {
        "REKNIT_BOOTSTRAP_SERVERS": bootstrap,
        "REKNIT_PREFIX": prefix,
        "REKNIT_PARTITIONS": str(lab.PARTITIONS),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
