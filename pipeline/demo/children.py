"""The demo's worker and viewer: child processes, which end when the demo does, however that ends."""

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

from pipeline.cli.viewer import DEFAULT_PORT
from pipeline.errors import ReknitError
from pipeline.settings import Config

_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOG_TAIL = 2000
# A proxy of the environment is for the world outside, not for the loopback address.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told. ``embedded``: the broker is the embedded one."""

    config: Config
    embedded: bool


class _Child:
    """A child process. ``url`` is where it answers."""

    name: str
    health: str

    def __init__(self, host: str, port: int, log: Path) -> None:
        """``log`` is where its words go."""
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://{host}:{port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self, *arguments: str, **more: str) -> None:
        """Start it with nothing of ours from the environment but ``more``: the demo is the same everywhere."""
        command = [sys.executable, "-m", "pipeline.demo.children", str(os.getpid()), self.name, *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REKNIT_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own module, our own arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | more,
                start_new_session=True,  # Ctrl-C is ours: we stop the feed first, then the children
            )

    async def ready(self, on_look: Callable[[], None]) -> None:
        """Wait until it answers that it is; ``on_look`` is called while that takes."""
        while not await asyncio.to_thread(self._is_ready):
            on_look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def ended(self) -> None:
        """Wait for its end, which nobody has asked for.

        Raises:
            ChildError: always, once it has ended.
        """
        while self.running:  # noqa: ASYNC110  a process tells no event loop of ours
            await asyncio.sleep(_LOOK_SECONDS)
        status = None if self._process is None else self._process.returncode
        words = f"the {self.name} ended with status {status}; its last words:\n{self.tail()}"
        raise ChildError(f"{self.name}_ended", words)

    def _is_ready(self) -> bool:
        if not self.running:
            return False
        with contextlib.suppress(OSError):
            return b"ok" in self._get(self.health)
        return False

    def _get(self, path: str) -> bytes:
        with _DIRECT.open(self.url + path, timeout=5) as answer:
            body: bytes = answer.read()
            return body

    def tail(self) -> str:
        return self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()

    def stop(self) -> None:
        """Let it finish what it does, and end it where it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Worker(_Child):
    """``reknit worker``, tuned for the embedded broker where it is that; it answers /metrics, /livez and /readyz."""

    name, health = "worker", "/readyz"

    def __init__(self, config: Config, log: Path) -> None:
        """``config`` has a metrics port."""
        super().__init__(config.metrics_host, config.metrics_port, log)
        self._config = config

    def start(self, *, embedded: bool) -> None:
        self._start(msgspec.json.encode(_Order(config=self._config, embedded=embedded)).decode())

    def metrics(self) -> str:
        """The text of /metrics.

        Raises:
            ChildError: it does not answer.
        """
        try:
            return self._get("/metrics").decode()
        except OSError as error:
            raise ChildError("worker_silent", f"no answer from {self.url}; its last words:\n{self.tail()}") from error


class Viewer(_Child):
    """``reknit viewer``, as somebody types it: for the demo's own pipeline, whose dead letters it may retry."""

    name, health = "viewer", "/healthz"

    def __init__(self, config: Config, log: Path) -> None:
        self._config, self._port = config, free_port(DEFAULT_PORT)
        super().__init__("127.0.0.1", self._port, log)

    def start(self) -> None:
        config = self._config
        where = ["--bootstrap-servers", config.bootstrap_servers, "--prefix", config.prefix]
        more = {"REKNIT_DELIVERY": config.delivery, "REKNIT_STATE_DIR": config.state_dir}
        self._start(*where, "--port", str(self._port), "--allow-retry", **more)


class ChildError(ReknitError):
    fault = "us"


def free_port(wanted: int = 0) -> int:
    """A port that nobody has: this one, or else any."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ChildError("no_port", "this machine has no free port")


def main(parent: str, program: str, *arguments: str) -> int:
    """Run as the child of a process: as a worker that is told what JSON says, or as a command of ours."""
    _end_with(int(parent))
    # Imported here: the demo itself needs no engine.
    if program != Worker.name:
        from pipeline.cli import main as reknit

        reknit([program, *arguments], prog_name="reknit")
        return 0
    from pipeline.cli.worker import run
    from pipeline.engine.embedded import TUNING

    order = msgspec.json.decode(arguments[0], type=_Order)
    try:
        return run(order.config, TUNING if order.embedded else None)
    except ReknitError as error:
        sys.stderr.write(f"reknit: {error}\n")
        return 2


def _end_with(parent: int) -> None:
    """Ask the kernel, where it can be asked, for SIGTERM at the parent's end: a kill -9 leaves none behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the request was made
            raise SystemExit(0)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
