"""Pages in a real browser: Chromium without a window, asked over its debugging protocol what a page did."""

import asyncio
import base64
import json
import os
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from msgspec import Struct, field

# So long a script may take to do what it is for; what runs at once is seen at once.
SETTLED_SECONDS = 1.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = "REQUIRE_BROWSER" in os.environ

# Each would ask for a picture, show a dialog or write to the console, if a browser took it for more than text.
HOSTILE = (
    "<script>alert('ran')</script>",
    "<script src=http://127.0.0.1:9/x.js></script>",
    "<img src=http://127.0.0.1:9/x.png onerror=alert('ran')>",
    "\"><svg onload=alert('ran')>",
    "' autofocus onfocus=alert('ran') x='",
    "<iframe src=\"javascript:alert('ran')\"></iframe>",
    "</pre></details></main><style>@import 'http://127.0.0.1:9/x.css'; body { display: none }</style>",
    "<a href=\"javascript:alert('ran')\">here</a>",
    "{{ 7 * 7 }} {% include 'base.html' %}",
    "<!-- ]]> --!><base href=http://127.0.0.1:9/>",
)
# No policy can keep a page from going elsewhere; only escaping does.
ELSEWHERE = "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>"

needs_browser = pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no Chromium (Debian package `chromium`)")


class Opened(Struct):
    """What a page did while it was open. ``requests`` are all URLs but the page's own that no policy stopped."""

    text: str = ""
    values: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    dialogs: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    screenshot: bytes = b""


async def open_page(path, *, dark=False, width=1200, ask=()):
    """Open a file by its absolute path, wait, and say what it did; ``ask`` are expressions whose values are wanted."""
    async with _browser() as call:
        opened = Opened()
        url = f"file://{path}"
        for domain in ("Page", "Network", "Runtime", "Log"):
            await call(f"{domain}.enable")
        await call("Emulation.setEmulatedMedia", features=[_scheme(dark)])
        await call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        await call("Page.navigate", url=url)
        await asyncio.sleep(SETTLED_SECONDS)
        stopped = {event["params"]["requestId"] for event in call.events if _is_stopped(event)}
        for event in call.events:
            if event.get("params", {}).get("requestId") not in stopped:
                _note(opened, event, url)
        for expression in ("document.body.innerText", *ask):
            answer = await call("Runtime.evaluate", expression=expression, returnByValue=True)
            opened.values.append(answer["result"].get("value"))
        opened.text = opened.values.pop(0)
        shot = await call("Page.captureScreenshot", captureBeyondViewport=True)
        opened.screenshot = base64.b64decode(shot["data"])
        return opened


def _scheme(dark):
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}


def _is_stopped(event):
    return event["method"] == "Network.loadingFailed" and event["params"].get("blockedReason") == "csp"


def _note(opened, event, url):
    method, given = event["method"], event.get("params", {})
    if method == "Network.requestWillBeSent" and given["request"]["url"] != url:
        opened.requests.append(given["request"]["url"])
    elif method == "Page.javascriptDialogOpening":
        opened.dialogs.append(given["message"])
    elif method == "Runtime.consoleAPICalled":
        opened.messages.append(given["args"][0].get("value"))
    elif method == "Log.entryAdded":
        opened.messages.append(given["entry"]["text"])


class _Call:
    """One request of the protocol at a time; dialogs are dismissed, or the page would wait for ever."""

    def __init__(self, socket):
        self._socket = socket
        self._number = 0
        self.events = []
        self._answers = {}
        self._reading = asyncio.create_task(self._read())

    async def __call__(self, method, **params):
        number = await self._send(method, params)
        self._answers[number] = asyncio.get_running_loop().create_future()
        answer = await asyncio.wait_for(self._answers[number], 30)
        assert "result" in answer, answer
        return answer["result"]

    async def _send(self, method, params):
        self._number += 1
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": params}))
        return self._number

    async def _read(self):
        async for received in self._socket:
            message = json.loads(received.data)
            if "id" not in message:
                self.events.append(message)
                if message["method"] == "Page.javascriptDialogOpening":
                    await self._send("Page.handleJavaScriptDialog", {"accept": False})
            elif message["id"] in self._answers:
                self._answers[message["id"]].set_result(message)

    def stop(self):
        self._reading.cancel()


@asynccontextmanager
async def _browser():
    assert CHROMIUM is not None, "REQUIRE_BROWSER is set, and there is no Chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # --no-sandbox: its sandbox does not start for root, whom tests often run as. The pages are our own.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(profile))
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [page for page in await answer.json() if page["type"] == "page"]
                async with http.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    call = _Call(socket)
                    yield call
                    call.stop()
        finally:
            process.kill()
            await process.wait()


async def _port(profile):
    written = profile / "DevToolsActivePort"
    for _ in range(1200):
        if written.exists() and (lines := written.read_text().split()):
            return int(lines[0])
        await asyncio.sleep(0.05)
    raise TimeoutError("Chromium did not start within a minute")
