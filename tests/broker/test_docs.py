"""The pages on feeding, consuming and showing are run, block by block, against a pipeline."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pipeline_lab as lab
import pytest

pytestmark = pytest.mark.broker

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("feeding.md", "consuming.md", "items.md", "operating.md", "security.md", "configuration.md")
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_every_block_of_the_pages_runs(broker, prefix, tmp_path, free_port):
    await run("operating.md", "sh", "reknit topics apply", broker.bootstrap, prefix)
    fleet = lab.make_fleet(broker.bootstrap, prefix, tmp_path, free_port)
    try:
        await fleet.start().ready(60)
        ran = [await run(page, *block, broker.bootstrap, prefix) for page in PAGES for block in blocks(page)]
    finally:
        fleet.end()
    assert len(ran) >= 5


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


async def run(page: str, language: str, text: str, bootstrap: str, prefix: str) -> None:
    text = text.replace('"localhost:9092"', f'"{bootstrap}", prefix="{prefix}"')
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    environment = os.environ | {
        "REKNIT_BOOTSTRAP_SERVERS": bootstrap,
        "REKNIT_PREFIX": prefix,
        "REKNIT_PARTITIONS": str(lab.PARTITIONS),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=-1, stderr=-2)
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0, f"{page}:\n{text}\n{said.decode()}"
