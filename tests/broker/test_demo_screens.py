"""`reknit demo --screens`: both clients on a session whose stream and server break off."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from browser import browsing
from example_pages import CLIENTS, EXAMPLES, blocks, bundle, needs_examples, state

pytestmark = [pytest.mark.embedded, *needs_examples]

PATIENCE = 150
FINAL = [
    ("text", "I will run a command.", []),
    ("call", {"command": "echo hello-from-tool", "description": "Run it"}, [["result", "hello-from-tool"]]),
    ("notice", "API Error: Connection lost mid-response. The response above may be incomplete.", []),
    ("text", "All done.", []),
]


@pytest.fixture
def url(tmp_path):
    """The page of a demo that stays up."""
    bundle(EXAMPLES / "dist")
    said = tmp_path / "said.txt"
    with said.open("wb") as err:
        command = [sys.executable, "-m", "reknit", "demo", "--screens"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, stdin=subprocess.DEVNULL)
    with process:
        try:
            deadline = time.monotonic() + PATIENCE
            while not re.search("Ctrl-C ends it", said.read_text()):
                assert time.monotonic() < deadline, said.read_text()
                assert process.poll() is None, said.read_text()
                time.sleep(0.05)
            yield re.search(r"a new one:\s+(http://127\.0\.0\.1:\d+/)", said.read_text())[1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
        finally:
            process.kill()


async def test_both_clients_recover(url):
    async with browsing() as browser, browser.tab() as page:
        await page.go(url)
        for words in ("Live", "Reconnecting…", "Live"):
            await page.until(" && ".join(f"{state(each)} === '{words}'" for each in CLIENTS), PATIENCE)
        last = "[...document.querySelectorAll('[data-kind]:last-child .content')].map(each => each.textContent)"
        await page.until(f"{last}.join() === 'All done.,All done.'")
        for protocol in CLIENTS:
            assert [shown(each) for each in await blocks(page, protocol)] == FINAL
        assert page.did().dialogs == []


def shown(block):
    text = json.loads(block["text"]) if block["kind"] == "call" else block["text"]
    return block["kind"], text, block["results"]
