"""The demo from its first line to its last: broker, topics, worker, feed, reports; then it ends or stays up."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
import webbrowser
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiokafka import ConsumerRecord
from aiokafka.errors import KafkaError
from msgspec import Struct

from reknit.pipeline.cli import write_json
from reknit.pipeline.cli.broker import unless_stopped
from reknit.pipeline.cli.topics import apply
from reknit.pipeline.config import load_config
from reknit.pipeline.demo.actors import (
    ChildError,
    ScreensServer,
    Viewer,
    Watch,
    Worker,
    count_records,
    feed,
    free_port,
    watching,
)
from reknit.pipeline.demo.example import SESSION, example
from reknit.pipeline.demo.recordings import Gathered, fleet
from reknit.pipeline.demo.show import Progress, counted, how_to_go_on, measured, score, stories, summary
from reknit.pipeline.demo.two_clients import RECORDING, check_pages, two_clients
from reknit.pipeline.engine.embedded import EmbeddedBroker
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka import explained
from reknit.pipeline.kafka.admin import connected, declared_topics
from reknit.pipeline.settings import Config
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS

PARTITIONS = 3
# The worker takes about ten seconds to start on a laptop, the fleet less than that.
START_SECONDS = 60.0
DRAIN_SECONDS = 60.0
# A shell's exit status of a program that Ctrl-C ended.
INTERRUPTED = 130
# The counts of the progress line, by topic.
_COUNTED = {PROVIDER_REQUESTS: "requests", HISTORY_FIXES: "fixes", SESSION_ITEMS: "items", DEAD_LETTERS: "dead letters"}


class Options(Struct, frozen=True, kw_only=True):
    """``bootstrap_servers`` None: start one. ``once``: end by itself. ``as_json``: reports to stdout.

    ``viewer``: show it in a browser as well; ``screens``: serve a page with two UI clients; ``open_browser``: open a
    browser on both. ``verbose``: a report on each session.
    """

    bootstrap_servers: str | None = None
    prefix: str = "demo."
    once: bool = False
    as_json: bool = False
    viewer: bool = False
    screens: bool = False
    open_browser: bool = False
    verbose: bool = False


def run(options: Options) -> int:
    """Run the demo and return its exit code; Ctrl-C and SIGTERM end it, and everything that it started.

    Raises:
        EmbeddedBrokerError: the embedded broker is not installed, or does not start.
        ChildError: the worker did not start, or did not get through the fleet in time.
        ReknitError: the given broker cannot be used, or the page with two clients is not built.
    """
    if options.screens:
        check_pages()
    # A client's problems with a broker are reported here, in one sentence.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    demo = Demo(options)
    is_done = asyncio.run(unless_stopped(demo.run()))
    return 0 if is_done or demo.reported else INTERRUPTED


class Demo:
    """One run. ``reported`` says that every session has been reported."""

    def __init__(self, options: Options) -> None:
        self.reported = False
        self._options = options
        self._embedded = options.bootstrap_servers is None
        self._progress = Progress()
        self._recordings = fleet()
        self._records = count_records(self._recordings)
        self._sent = 0
        self._counts = Counter[str]()
        self._gathered: dict[str, Gathered] = {}

    async def run(self) -> None:
        """All of it; what it started has ended when it returns or raises."""
        self._result(example(self._recordings))
        self._progress.show_lines(["", f"{len(self._recordings)} recorded sessions through a worker:"])
        with ExitStack() as started:
            started.callback(self._progress.clear_line)
            config = self._configured(started)
            try:
                await self._run(config, started)
            except KafkaError as error:
                raise await explained(config, error) from error

    async def _run(self, config: Config, started: ExitStack) -> None:
        await self._make_topics(config)
        async with watching(config) as watch:
            viewer = self._launch_viewer(config, started) if self._options.viewer else None
            worker = await self._start_worker(config, started)
            if viewer is not None:
                await self._await_viewer(viewer)
            await self._feed(config, watch, worker)
            self._report_sessions(worker)
            self._result(self._where_to_look(viewer))
            if not self._options.once:
                async with self._screens(config) as (page, plays):
                    urls = "" if viewer is None else viewer.url, page
                    self._progress.show_lines(how_to_go_on(config, worker.url, *urls))
                    # Read on, so that the changing line counts what is fed by hand; only a signal or a failure ends it.
                    extra = [*plays, *([] if viewer is None else [viewer.ended()])]
                    reading = watch.read(self._gather_record, asyncio.Event())
                    await alongside(worker.ended(), reading, *extra, seconds=None)

    @asynccontextmanager
    async def _screens(self, config: Config) -> AsyncIterator[tuple[str, list[Coroutine[Any, Any, None]]]]:
        """Serve the page with two clients, if it is wanted; the values are its URL, and what runs for it."""
        if not self._options.screens:
            yield "", []
            return
        server = ScreensServer(config, Path(config.state_dir) / "screens.log")
        recording = next(each for each in self._recordings if each.session == RECORDING)
        try:
            async with two_clients(config, recording, server) as (url, clients):
                self._progress.finish_stage("screens", url)
                if self._options.open_browser:
                    await asyncio.to_thread(webbrowser.open, url)
                yield url, [clients.run()]
        finally:
            server.stop()

    def _configured(self, started: ExitStack) -> Config:
        """Start a broker where none is given, and say how to reach it."""
        bootstrap = self._options.bootstrap_servers
        if not self._options.prefix:
            raise InputError("no_prefix", "without a prefix the demo would feed a pipeline that is not its own")
        if bootstrap is None:
            bootstrap = started.enter_context(EmbeddedBroker()).bootstrap
        config = load_config(
            env={},
            overrides={
                "bootstrap_servers": bootstrap,
                "prefix": self._options.prefix,
                "partitions": PARTITIONS,
                "delivery": "at-least-once" if self._embedded else "exactly-once",
                "metrics_port": free_port(),
                "state_dir": started.enter_context(tempfile.TemporaryDirectory(prefix="reknit-demo-")),
                # For whoever feeds it by hand afterwards; the fleet's sessions say what they want themselves.
                "session.model": "claude-sonnet-4-5",
                "session.max_tokens": 1024,
            },
        )
        kind = "embedded, in memory, " if self._embedded else ""
        self._progress.finish_stage("broker", f"{config.bootstrap_servers} ({kind}{config.delivery})")
        return config

    async def _make_topics(self, config: Config) -> None:
        async with connected(config) as cluster:
            outcomes = await apply(cluster, declared_topics(config))
        if foreign := [outcome.topic for outcome in outcomes if outcome.status in {"drift", "missing"}]:
            raise InputError("topics_differ", f"{foreign[0]} is there and is not the demo's own: use another --prefix")
        layout = f"{counted(config.partitions, 'partition')} each"
        self._progress.finish_stage("topics", f"{len(outcomes)} with prefix {config.prefix!r}, {layout}")

    async def _start_worker(self, config: Config, started: ExitStack) -> Worker:
        worker = Worker(config, Path(config.state_dir) / "worker.log")
        started.callback(worker.stop)
        began = time.monotonic()
        worker.start(embedded=self._embedded)

        def show_seconds() -> None:
            self._progress.update_line("worker", f"starting, {time.monotonic() - began:.0f} s")

        try:
            await alongside(worker.ready(show_seconds), worker.ended(), seconds=START_SECONDS)
        except TimeoutError as error:
            raise _too_slow("is not ready", START_SECONDS, worker) from error
        self._progress.finish_stage(
            "worker", f"ready after {time.monotonic() - began:.1f} s, metrics at {worker.url}/metrics"
        )
        return worker

    def _launch_viewer(self, config: Config, started: ExitStack) -> Viewer:
        """Start the viewer, which gets ready while the worker does."""
        viewer = Viewer(config, Path(config.state_dir) / "viewer.log")
        started.callback(viewer.stop)
        viewer.start()
        return viewer

    async def _await_viewer(self, viewer: Viewer) -> None:
        try:
            await alongside(viewer.ready(lambda: None), viewer.ended(), seconds=START_SECONDS)
        except TimeoutError as error:
            raise _too_slow("is not ready", START_SECONDS, viewer) from error
        self._progress.finish_stage("viewer", f"{viewer.url}/")
        if self._options.open_browser:
            await asyncio.to_thread(webbrowser.open, f"{viewer.url}/")

    async def _feed(self, config: Config, watch: Watch, worker: Worker) -> None:
        """Feed the fleet and read the outputs, until no work is left."""
        # On a broker that has seen a demo before, sessions get new keys, so that the old ones' state stays out of it.
        mark = f".{watch.before}" if watch.before else ""
        clients = {recording.session + mark: recording for recording in self._recordings}
        self._gathered = {key: Gathered() for key in clients}
        fed, began = asyncio.Event(), time.monotonic()

        async def write() -> None:
            await feed(config, clients, lambda key: self._gathered[key].recorded, self._on_sent)
            fed.set()

        try:
            await alongside(watch.read(self._gather_record, fed), write(), worker.ended(), seconds=DRAIN_SECONDS)
        except TimeoutError as error:
            raise _too_slow("has not got through the fleet", DRAIN_SECONDS, worker) from error
        self._progress.finish_stage(
            "fleet", f"{self._records} records in {time.monotonic() - began:.1f} s; {self._so_far()}"
        )

    def _on_sent(self) -> None:
        self._sent += 1
        self._show()

    def _gather_record(self, topic: str, record: ConsumerRecord) -> None:
        """Keep one published record; one of another session is only counted."""
        self._counts[topic] += 1
        gathered = self._gathered.get((record.key or b"").decode(errors="replace"))
        if gathered is not None and not self.reported:
            gathered.add_record(topic, record.value, record.headers)
        self._show()

    def _show(self) -> None:
        if self.reported:
            self._progress.update_line("running", self._so_far())
        else:
            self._progress.update_line(
                "fleet", f"{self._sent}/{self._records}  {self._so_far()}", self._sent, self._records
            )

    def _so_far(self) -> str:
        return ", ".join(f"{self._counts[topic]} {noun}" for topic, noun in _COUNTED.items())

    def _report_sessions(self, worker: Worker) -> None:
        reports = [
            gathered.report(recording)
            for recording, gathered in zip(self._recordings, self._gathered.values(), strict=True)
        ]
        self.reported = True
        if self._options.as_json:
            for report in reports:
                write_json(report)
        if self._options.verbose:
            self._progress.show_lines(stories(reports))
            self._progress.show_lines(summary(reports, measured(worker.metrics())))
        self._result(["", *score(reports)])

    def _where_to_look(self, viewer: Viewer | None) -> list[str]:
        """Return how to see the session of the example, and the others."""
        if viewer is None:
            return ["", "    `reknit demo --viewer` shows each session in a browser; with --verbose each has a report."]
        key = next(key for key in self._gathered if key.partition(".")[0] == SESSION)
        return ["", f"    The session above, in the viewer: {viewer.url}/sessions/{quote(key, safe='')}"]

    def _result(self, lines: Iterable[str]) -> None:
        """Show lines for people: on stdout, unless JSON goes there."""
        self._progress.show_lines(lines, err=self._options.as_json)


def _too_slow(what: str, seconds: float, child: Worker | Viewer) -> ChildError:
    words = f"the {child.name} {what} after {seconds:.0f} s; its last words:\n{child.tail()}"
    return ChildError(f"{child.name}_slow", words)


async def alongside(work: Coroutine[Any, Any, None], *extra: Coroutine[Any, Any, None], seconds: float | None) -> None:
    """Run ``work`` to its end concurrently with others, which are then cancelled.

    An error of any of them ends all. ``seconds`` None: no time limit.

    Raises:
        TimeoutError: the time limit has passed.
    """
    decisive = asyncio.create_task(work)
    running = {decisive, *map(asyncio.create_task, extra)}
    every = list(running)
    try:
        async with asyncio.timeout(seconds):
            while decisive in running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
    finally:
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
