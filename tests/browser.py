"""Pages in a real browser: headless Chromium, driven and inspected over its debugging protocol."""

import asyncio
import base64
import gzip
import json
import os
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from msgspec import Struct, field

# How long a script gets to take effect. A script that runs on load takes effect immediately.
SETTLED_SECONDS = 1.0
# How long to wait for a condition of a page, on a machine that is also busy with other work.
PATIENCE_SECONDS = 120.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = "REQUIRE_BROWSER" in os.environ
AXE = Path(__file__).parent / "axe" / "axe.min.js.gz"
# The axe tags of the WCAG levels A and AA, up to version 2.2.
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"]

# Each requests a picture, shows a dialog or writes to the console if a browser takes it for more than text.
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
# No content security policy can keep a page from navigating away; only escaping can.
ELSEWHERE = "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>"

needs_browser = pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no Chromium (Debian package `chromium`)")


class Opened(Struct):
    """The effects of a page while it was open.

    ``requests`` has all URLs except the page's own that no policy blocked.
    """

    text: str = ""
    values: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    dialogs: list = field(default_factory=list)
    messages: list = field(default_factory=list)


# Scrolls to an element and returns the position of its middle, or null if the element is missing.
_MIDDLE = """element => {
    if (element === null) return null;
    element.scrollIntoView({block: 'center', behavior: 'instant'});
    const box = element.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
}"""


async def open_page(path, *, dark=False, width=1200, ask=()):
    """Open a file by its absolute path, wait, and return what it did. ``ask`` has expressions to evaluate."""
    async with browsing() as browser, browser.tab(dark=dark, width=width) as page:
        await page.go(f"file://{path}")
        await asyncio.sleep(SETTLED_SECONDS)
        opened = page.did()
        opened.text = await page.text()
        opened.values = [await page.ask(expression) for expression in ask]
        return opened


class Page:
    """A tab with its own cookies. A CSS selector names the element to click or to type into."""

    def __init__(self, call, events):
        self._call = call
        self._events = events
        self._own = ""

    async def go(self, url):
        """Open a URL and wait until it has loaded; return the status of the response, 0 for a file."""
        parts = urlsplit(url)
        self._own = url if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}/"
        begun = len(self._events)
        answer = await self._call("Page.navigate", url=url)
        assert "errorText" not in answer, (url, answer)
        await self.until("document.readyState === 'complete'")
        for event in self._events[begun:]:
            given = event["params"]
            if event["method"] == "Network.responseReceived" and given["requestId"] == answer.get("loaderId"):
                return given["response"]["status"]
        return 0

    async def ask(self, expression):
        """Return the value of a JavaScript expression, or of the promise that it returns."""
        answer = await self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    async def text(self):
        return await self.ask("document.body.innerText")

    async def until(self, expression, seconds=PATIENCE_SECONDS):
        """Wait for an expression to be true, also across navigations, and return its value."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                if value := await self.ask(expression):
                    return value
            except AssertionError:  # the element does not exist yet, or the page is navigating away
                pass
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError((expression, await self.text(), self.did()))
            await asyncio.sleep(0.03)

    async def click(self, selector):
        """Click at the element's position, as a mouse does: an element on top of it gets the click."""
        # In one expression: a page that is kept current may replace the element at any time.
        x, y = await self.until(f"({_MIDDLE})(document.querySelector({json.dumps(selector)}))")
        for kind in ("mousePressed", "mouseReleased"):
            await self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    @asynccontextmanager
    async def navigation(self):
        """Wait after the block until the page that it leads to has loaded.

        An expression for ``until`` may be true on the old page already; what follows would then run on either page.
        """
        begun = len(self._events)
        yield
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not any(map(_is_navigation, self._events[begun:])):
            assert asyncio.get_running_loop().time() < deadline, ("no navigation", await self.text(), self.did())
            await asyncio.sleep(0.03)
        await self.until("document.readyState === 'complete'")

    async def follow(self, selector):
        """Click at an element that leads to another page, and wait until that has loaded."""
        async with self.navigation():
            await self.click(selector)

    async def type(self, selector, text):
        """Replace the text of a field."""
        await self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        await self.ask(f"(f => {{ f.focus(); f.select(); }})(document.querySelector({json.dumps(selector)}))")
        await self._call("Input.insertText", text=text)

    async def press(self, key):
        """Press a key, named (``Enter``, ``Tab``) or given as its character."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        await self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        await self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def screenshot(self, *, whole=False):
        """Return a PNG of the visible part of the page, or of the whole page."""
        shot = await self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    async def look(self, *, dark, width=1200, height=900):
        """Switch to the light or the dark colour scheme, in a window of this size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._call("Emulation.setDeviceMetricsOverride", **size)

    async def violations(self):
        """Return what axe finds against WCAG A and AA, one line each: the rule, the element, the problem."""
        if not await self.ask("'axe' in window"):
            await self.ask(gzip.decompress(AXE.read_bytes()).decode() + ";0")
        options = {"runOnly": WCAG, "resultTypes": ["violations"], "preload": False}
        found = await self.ask(f"axe.run(document, {json.dumps(options)}).then(results => results.violations)")
        return [
            f"{rule['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
        ]

    def did(self):
        """Return everything that the tab did since it was opened."""
        stopped = {event["params"]["requestId"] for event in self._events if _is_stopped(event)}
        did = Opened()
        for event in self._events:
            if event["params"].get("requestId") not in stopped:
                self._note(did, event["method"], event["params"])
        return did

    def _note(self, did, method, given):
        if method == "Network.requestWillBeSent" and not self._is_own(given["request"]["url"]):
            did.requests.append(given["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            did.dialogs.append(given["message"])
        elif method == "Runtime.consoleAPICalled":
            did.messages.append(" ".join(str(each.get("value", each.get("description"))) for each in given["args"]))
        elif method == "Runtime.exceptionThrown":
            did.messages.append(json.dumps(given["exceptionDetails"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] != "verbose":  # only advice
            did.messages.append(given["entry"]["text"])

    def _is_own(self, url):
        return url.startswith((self._own, "data:")) if self._own.startswith("http") else url == self._own


def _is_navigation(event):
    """Whether the tab shows another document from here on; a frame inside its page does not count."""
    return event["method"] == "Page.frameNavigated" and "parentId" not in event["params"]["frame"]


def _is_stopped(event):
    return event["method"] == "Network.loadingFailed" and event["params"].get("blockedReason") == "csp"


class Browser:
    """The protocol of one Chromium: calls of all tabs over one socket. Dialogs are dismissed, or pages would wait."""

    def __init__(self, socket):
        self._socket = socket
        self._number = 0
        self._answers = {}
        self._events = {}
        self._reading = asyncio.create_task(self._read())

    @asynccontextmanager
    async def tab(self, *, dark=False, width=1200, height=900, scripts=True):
        """A new tab that shares no cookies with other tabs. ``scripts=False`` turns JavaScript off."""
        context = (await self._call(None, "Target.createBrowserContext"))["browserContextId"]
        try:
            made = await self._call(None, "Target.createTarget", url="about:blank", browserContextId=context)
            attached = await self._call(None, "Target.attachToTarget", targetId=made["targetId"], flatten=True)
            session = attached["sessionId"]

            async def call(method, **params):
                return await self._call(session, method, **params)

            page = Page(call, self._events.setdefault(session, []))
            for domain in ("Page", "Network", "Runtime", "Log"):
                await call(f"{domain}.enable")
            await call("Emulation.setScriptExecutionDisabled", value=not scripts)
            await page.look(dark=dark, width=width, height=height)
            yield page
        finally:
            await self._call(None, "Target.disposeBrowserContext", browserContextId=context)

    async def _call(self, session, method, **params):
        number = await self._send(session, method, params)
        self._answers[number] = asyncio.get_running_loop().create_future()
        answer = await asyncio.wait_for(self._answers[number], PATIENCE_SECONDS)
        assert "result" in answer, (method, answer)
        return answer["result"]

    async def _send(self, session, method, params):
        self._number += 1
        named = {} if session is None else {"sessionId": session}
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": params, **named}))
        return self._number

    async def _read(self):
        async for received in self._socket:
            message = json.loads(received.data)
            if "id" not in message:
                session = message.get("sessionId")
                self._events.setdefault(session, []).append(message)
                if message["method"] == "Page.javascriptDialogOpening":
                    await self._send(session, "Page.handleJavaScriptDialog", {"accept": False})
            elif message["id"] in self._answers:
                self._answers.pop(message["id"]).set_result(message)

    def stop(self):
        self._reading.cancel()


@asynccontextmanager
async def browsing():
    """A browser that ends with the block."""
    assert CHROMIUM is not None, "REQUIRE_BROWSER is set, and there is no Chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # --no-sandbox: Chromium's sandbox does not start for root, and tests often run as root. The pages are this
        # project's.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            endpoint = await _endpoint(Path(profile))
            async with aiohttp.ClientSession() as http, http.ws_connect(endpoint, max_msg_size=0) as socket:
                browser = Browser(socket)
                try:
                    yield browser
                finally:
                    browser.stop()
        finally:
            process.kill()
            await process.wait()


async def _endpoint(profile):
    written = profile / "DevToolsActivePort"
    for _ in range(1200):
        if written.exists() and len(lines := written.read_text().split()) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        await asyncio.sleep(0.05)
    raise TimeoutError("Chromium did not start within a minute")
