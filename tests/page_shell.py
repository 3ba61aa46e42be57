"""Runs a page of the docs in an empty folder, block by block, as a person types it.

A block ``sh`` or ``python`` is run. If a block ``text`` comes after it, the page shows that output: its lines must be
in the real output in this order, where ``…`` is any text. A block ``sh`` that ends with ``&`` is a program that runs
until the page ends; a block ``text`` after it waits until the program has written it.
"""

import asyncio
import os
import re
import sys
import tomllib
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_SECONDS = 240
# Variables of this machine that the commands of a page would read.
OWN = ("ANTHROPIC_", "OPENAI_", "REKNIT_")
# 0, and 3: repaired. The third is that of a body which the provider would reject.
CODES = {0, 3, 4}


class Output(Struct):
    """The output of a block, in a file, and its process."""

    file: Path
    process: asyncio.subprocess.Process

    def text(self):
        return self.file.read_text("utf-8", "replace")


class PageShell:
    """A folder, an environment, and words of the page that differ here, such as addresses."""

    def __init__(self, folder, replaced=None, environment=None):
        self.folder = folder
        self._replaced = replaced or {}
        tools = write_tools(folder.parent / f"{folder.name}-tools")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(OWN)},
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            **(environment or {}),
        }
        self._going_on = []
        self._count = 0

    async def run(self, page, before=None):
        """Run all blocks of a page; ``before`` is awaited with the text of each block before it runs."""
        folder, blocks = self.folder, BLOCK.findall((DOCS / page).read_text("utf-8"))
        folder.mkdir(exist_ok=True)
        written = None
        try:
            for kind, shown in blocks:
                text = self._here(shown)
                if kind == "text":
                    await self._until_written(page, written, text)
                    continue
                if before is not None:
                    await before(text)
                written = await self._start(kind, text)
                if not text.endswith("&\n"):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        code = await written.process.wait()
                    assert code in CODES, f"{page}: {code}\n{text}\n{written.text()}"
        finally:
            await self._end()
        return [kind for kind, _ in blocks]

    def _here(self, text):
        for shown, real in self._replaced.items():
            text = text.replace(shown, real)
        return text

    async def _start(self, kind, text):
        self._count += 1
        goes_on = text.endswith("&\n")
        if kind == "sh":
            line = f"exec {text.rstrip().removesuffix('&')}" if goes_on else text
            command = ["bash", "-c", line]
        else:
            command = [sys.executable, "-c", text]
        file = self.folder.parent / f"{self.folder.name}-{self._count}.txt"
        with file.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=self.folder, env=self._environment, stdout=output, stderr=output
            )
        if goes_on:
            self._going_on.append(process)
        return Output(file, process)

    async def _until_written(self, page, written, text):
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            goes_on = written.process.returncode is None and asyncio.get_running_loop().time() < deadline
            missing = first_missing(text, written.text())
            if missing is None:
                return
            assert goes_on, f"{page}: not written: {missing}\n{written.text()}"
            await asyncio.sleep(0.1)

    async def _end(self):
        for process in reversed(self._going_on):
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await process.wait()


def first_missing(shown, written):
    """Return the first line that the page shows and that was not written after the line before it; None: all were."""
    at = 0
    for line in filter(None, shown.splitlines()):
        found = re.compile(".*?".join(map(re.escape, line.split("…")))).search(written, at)
        if found is None:
            return line
        at = found.end()
    return None


def write_tools(folder):
    """Write ``reknit``, ``python3`` and ``pip``: this checkout, and a ``pip`` that only knows the extras."""
    folder.mkdir()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    known = "|".join(["reknit", *(rf"reknit\[{extra}\]" for extra in extras), "anthropic"])
    tools = {
        "reknit": f'exec {sys.executable} -m reknit "$@"\n',
        "python3": f'exec {sys.executable} "$@"\n',
        "pip": f'shift\nfor name; do case "$name" in {known}) ;; *) echo "no package $name"; exit 1;; esac; done\n',
    }
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}", "utf-8")
        (folder / name).chmod(0o700)
    return folder
