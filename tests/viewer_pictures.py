"""Take the pictures of the viewer for README and docs, in a browser that opens a running viewer of the demo's fleet.

    reknit demo --viewer                                       # in another terminal; it prints its URL
    python tests/viewer_pictures.py http://127.0.0.1:PORT/ [--to docs/pictures] [--every DIRECTORY]

``--every`` writes pictures for review only: each kind of page, light, dark and in a narrow window.
"""

import argparse
import asyncio
import re
from pathlib import Path
from urllib.parse import urljoin

from browser import browsing

ROOT = Path(__file__).resolve().parents[1]
BROKEN = '{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "ls", "input": {}}]}'
HISTORY = f'[{{"role": "user", "content": "What is here?"}},\n {BROKEN},\n {{"role": "user", "content": "Well?"}}]'
# A row is a file, the page, the text that must be present, the window size, and True for the dark scheme.
KEPT = (
    ("overview", "/", "h1", (1200, 900), False),
    ("request", "/sessions/lost-result", "a[href*='/requests/'][href*='at=']", (1200, 900), False),
    ("stream", "/sessions/replaced-thinking/stream", "h1", (1200, 900), True),
    ("playground", "/playground", "textarea", (1200, 900), False),
)
LOOKS = (("light", (1200, 900), False), ("dark", (1200, 900), True), ("narrow", (400, 800), False))
PAGES = (
    "/", "/sessions", "/sessions?severity=lossy", "/sessions/lost-result", "/sessions/two-targets", "/sessions/poison",
    "/sessions/sub-agent", "/sessions/sub-agent/stream", "/sessions/killed/stream", "/sessions/never-shown/stream",
    "/letters", "/compare", "/playground", "/explain", "/explain/result_synthesised", "/nothing", "/login",
)  # fmt: skip


async def keep(url, folder):
    """Take the pictures that README and docs show."""
    folder.mkdir(parents=True, exist_ok=True)
    async with browsing() as browser:
        for name, path, there, (width, height), dark in KEPT:
            async with browser.tab(dark=dark, width=width, height=height) as page:
                await page.go(urljoin(url, path))
                if name == "request":
                    await page.click(there)
                    await page.until("location.pathname.includes('/requests/') && document.readyState === 'complete'")
                if name == "playground":
                    await page.type(there, HISTORY)
                    await page.until("document.querySelector('#outcome').innerText.includes('result_synthesised')")
                await asyncio.sleep(0.5)
                (folder / f"{name}.png").write_bytes(await page.screenshot())


async def every(url, folder):
    """Take each kind of page in each look, in full length."""
    folder.mkdir(parents=True, exist_ok=True)
    async with browsing() as browser:
        for look, (width, height), dark in LOOKS:
            async with browser.tab(dark=dark, width=width, height=height) as page:
                for path in PAGES:
                    await page.go(urljoin(url, path))
                    await asyncio.sleep(0.3)
                    name = re.sub(r"\W+", "-", path).strip("-") or "overview"
                    (folder / f"{name}-{look}.png").write_bytes(await page.screenshot(whole=True))


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--every", type=Path)
    options = parser.parse_args()
    asyncio.run(keep(options.url, options.to) if options.every is None else every(options.url, options.every))


if __name__ == "__main__":
    main()
