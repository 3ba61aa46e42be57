"""The demo's worker: ``reknit worker`` as a child process, which ends when the demo does, however that ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from pipeline.errors import ReknitError
from pipeline.settings import Config

_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOG_TAIL = 2000
# A proxy of the environment is for the world outside, not for the loopback address.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told. ``embedded``: the broker is the embedded one. ``parent`` is the demo's process id."""

    config: Config
    embedded: bool
    parent: int


class Worker:
    """The child process. ``url`` is where it answers /metrics, /livez and /readyz."""

    def __init__(self, config: Config, log: Path) -> None:
        """``config`` has a metrics port; ``log`` is where the child's words go."""
        self._config = config
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://{config.metrics_host}:{config.metrics_port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, embedded: bool) -> None:
        """Start it, with this configuration and nothing from the environment: the demo is the same everywhere."""
        order = _Order(config=self._config, embedded=embedded, parent=os.getpid())
        command = [sys.executable, "-m", "pipeline.demo.worker", msgspec.json.encode(order).decode()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REKNIT_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own module, our own arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours: we stop the feed first, then the worker
            )

    async def ready(self, on_look: Callable[[], None]) -> None:
        """Wait until it has its partitions and has read its state; ``on_look`` is called while that takes."""
        while not await asyncio.to_thread(self._is_ready):
            on_look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def ended(self) -> None:
        """Wait for its end, which nobody has asked for.

        Raises:
            WorkerError: always, once it has ended.
        """
        while self.running:  # noqa: ASYNC110  a process tells no event loop of ours
            await asyncio.sleep(_LOOK_SECONDS)
        status = None if self._process is None else self._process.returncode
        raise WorkerError("worker_ended", f"the worker ended with status {status}; its last words:\n{self.tail()}")

    def _is_ready(self) -> bool:
        if not self.running:
            return False
        with contextlib.suppress(OSError):
            return b"ok" in self._get("/readyz")
        return False

    def metrics(self) -> str:
        """The text of /metrics.

        Raises:
            WorkerError: it does not answer.
        """
        try:
            return self._get("/metrics").decode()
        except OSError as error:
            raise WorkerError("worker_silent", f"no answer from {self.url}; its last words:\n{self.tail()}") from error

    def _get(self, path: str) -> bytes:
        with _DIRECT.open(self.url + path, timeout=5) as answer:
            body: bytes = answer.read()
            return body

    def tail(self) -> str:
        return self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()

    def stop(self) -> None:
        """Let it finish its batches, and end it where it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerError(ReknitError):
    fault = "us"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(argument: str) -> int:
    """Run as the child; the argument is what it is told, as JSON."""
    order = msgspec.json.decode(argument, type=_Order)
    _end_with(order.parent)
    # Imported here: the demo itself needs no engine.
    from pipeline.cli.worker import run
    from pipeline.engine.embedded import TUNING

    try:
        return run(order.config, TUNING if order.embedded else None)
    except ReknitError as error:
        sys.stderr.write(f"reknit: {error}\n")
        return 2


def _end_with(parent: int) -> None:
    """Ask the kernel, where it can be asked, for SIGTERM at the parent's end: a kill -9 leaves no worker behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the request was made
            raise SystemExit(0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
