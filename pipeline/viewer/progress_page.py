"""The page of the worker's progress by partition, and the part of it in every header."""

from __future__ import annotations

from aiohttp import web
from msgspec import structs

from reknit.pipeline.viewer.guard import PROGRESS
from reknit.pipeline.viewer.index import Reader
from reknit.pipeline.viewer.index.reading import Behind
from reknit.pipeline.viewer.pages import VIEWER, Viewer, page
from reknit.pipeline.viewer.progress import LATE_SECONDS


def followed(viewer: Viewer) -> Behind:
    """Return the lag of the index. With a frozen broker the follower knows of none, so the last look decides."""
    behind, silence = viewer.follower.behind(), viewer.progress.silence()
    if silence is None or behind.error:
        return behind
    return structs.replace(behind, error=f"no broker has answered for {silence:,.0f} s")


async def _progress(request: web.Request) -> web.Response:
    if request.query.get("part") == "header":
        return page(request, "parts/status.html")
    viewer = request.app[VIEWER]
    return page(
        request,
        "progress.html",
        behind=followed(viewer),
        cluster_id=await viewer.pools.pages.run(_cluster_id, viewer.index.reader),
        source_prefix=viewer.config.source_prefix,
        group=f"{viewer.config.prefix}reknit",
        late=LATE_SECONDS,
    )


def _cluster_id(reader: Reader) -> str:
    return next((value for (value,) in reader.rows("SELECT value FROM about WHERE name = 'cluster'")), "")


routes = [web.get(PROGRESS, _progress)]
