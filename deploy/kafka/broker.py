"""A real Apache Kafka 4.1.1 without Docker: one KRaft node, started from jars that Maven fetches once.

People start it with ``deploy/kafka/run --dir DIR --port 9092`` (Ctrl-C stops it). Tests use ``Broker``. Needs Java 17
and, the first time, Maven; only the standard library is imported, so it runs with any Python 3.11.
"""

# ruff: noqa: INP001, S603 - a script next to the jars, not a package; it starts java and mvn with its own arguments
from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIB = HERE / "lib"
# Any 16 bytes in base64 do: a data directory belongs to the one node that formatted it.
CLUSTER_ID = "cmVrbml0LWxvY2FsLWticg"
START_SECONDS = 60.0
STOP_SECONDS = 20.0


class BrokerError(RuntimeError):
    """The broker cannot be started; the message says what is missing or what it wrote last."""


def missing_tools() -> str | None:
    """Return why no broker can be started on this machine, or None."""
    if shutil.which("java") is None:
        return "java is not on the PATH (Apache Kafka 4 needs Java 17)"
    if not jars_present() and shutil.which("mvn") is None:
        return f"{LIB} has no jars and mvn is not on the PATH"
    return None


def jars_present() -> bool:
    """Return whether Maven has copied the broker's jars already."""
    return any(LIB.glob("kafka_2.13-*.jar")) and any(LIB.glob("slf4j-simple-*.jar"))


def fetch_jars(timeout: float = 600.0) -> None:
    """Copy the jars into ``lib/``, from the local Maven repository where it has them.

    Raises:
        BrokerError: Maven failed, or took longer than ``timeout`` seconds.
    """
    if jars_present():
        return
    wrong = missing_tools()
    if wrong:
        raise BrokerError(wrong)
    maven = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "package"]
    for command in ([*maven[:1], "-o", *maven[1:]], maven):
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode == 0 and jars_present():
            return
    raise BrokerError(f"Maven could not fetch the jars:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def claim(lock: Path, message: str) -> int:
    """Lock a file and return its descriptor; the lock ends with the last process that has it.

    Raises:
        BrokerError: another process holds it.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BrokerError(message) from None
    return descriptor


def _treat_termination_as_ctrl_c() -> None:
    """Let SIGTERM unwind this process, so that whoever started a broker stops it on the way out.

    By default it ends the process at once, and the broker, in a session of its own, would stay for ever.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


class Broker:
    """One broker process and its data directory; the port and the data outlive a restart."""

    def __init__(self, directory: Path, port: int = 0, heap: str = "512m", **settings: str) -> None:
        """``settings`` override those of ``server.properties``; underscores in their names represent dots."""
        self.directory = directory.resolve()
        self.port = port or free_port()
        self.controller_port = free_port()
        self.heap = heap
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.format_options: list[str] = []  # for the storage tool, such as the first users
        self.log = self.directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id while it was started and not stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Format the directory if it is new, start the broker and return once it accepts connections.

        Raises:
            BrokerError: another broker has the port or the directory; it ended, or did not listen within a minute.
        """
        fetch_jars()
        _treat_termination_as_ctrl_c()
        self.directory.mkdir(parents=True, exist_ok=True)
        # The broker inherits the locks, so that they hold even where only this process is killed.
        locks = [claim(self.directory / "lock", f"another broker uses {self.directory}: stop it, or say --dir")]
        try:
            locks.append(self._claim_port())
            self._start(locks)
        finally:
            for lock in locks:
                os.close(lock)
        self._wait_until_listening()

    def _claim_port(self) -> int:
        message = f"port {self.port} is taken: stop what listens there, or give another --port (0 for a free one)"
        # A broker takes a few seconds to listen; until then only the lock informs another start of it.
        lock = claim(Path(tempfile.gettempdir()) / f"reknit-kafka-{os.getuid()}-{self.port}.lock", message)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as error:
                os.close(lock)
                raise BrokerError(message) from error
        return lock

    def _start(self, locks: list[int]) -> None:
        properties = self._write_properties()
        if not (self.directory / "data" / "meta.properties").exists():
            self._run_tool(
                "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *self.format_options
            )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java(f"-Xmx{self.heap}", f"-Xms{self.heap}"), "kafka.Kafka", str(properties)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal reaches the launcher, which stops the broker
                pass_fds=locks,
            )

    def stop(self) -> None:
        """Stop the broker in order; kill it if that takes too long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker as a power cut would."""
        self._end(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the broker's own end and return its exit status."""
        return self._process.wait() if self._process else 0

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write_properties(self) -> Path:
        own = {
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "log.dirs": str(self.directory / "data"),
            **self.settings,
        }
        lines = [f"{name}={value}" for name, value in own.items()]
        path = self.directory / "server.properties"
        path.write_text((HERE / "server.properties").read_text() + "\n" + "\n".join(lines) + "\n")
        return path

    def _java(self, *options: str) -> list[str]:
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *options, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4", logging, "-cp", f"{LIB}/*"]

    def _run_tool(self, *arguments: str) -> None:
        command = [*self._java("-Xmx256m", "-XX:TieredStopAtLevel=1"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        if done.returncode != 0:
            raise BrokerError(f"{arguments[0]} failed:\n{done.stdout}{done.stderr}")

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.kill()
        tail = self.log.read_bytes()[-3000:].decode(errors="replace")
        raise BrokerError(f"the broker did not listen on port {self.port}; its log ends:\n{tail}")


def main() -> int:
    """Start a broker in the foreground until it ends or is stopped."""
    parser = argparse.ArgumentParser(prog="deploy/kafka/run", description="Start a local Apache Kafka.")
    default = HERE.parent.parent / ".reknit" / "kafka"
    parser.add_argument("--dir", type=Path, default=default, help="data directory (default: .reknit/kafka)")
    parser.add_argument("--port", type=int, default=9092, help="0 for a free one (default: 9092)")
    parser.add_argument("--heap", default="512m", help="Java heap (default: 512m)")
    parser.add_argument("--fetch-only", action="store_true", help="fetch the jars and leave")
    options = parser.parse_args()
    try:
        fetch_jars()
        if options.fetch_only:
            return 0
        broker = Broker(options.dir, options.port, options.heap)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            broker.start()
            stop = f"Ctrl-C stops it, or kill {os.getpid()}"
            sys.stdout.write(f"Kafka at {broker.bootstrap}, data in {broker.directory}; {stop}\n")
            sys.stdout.flush()
            return broker.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            broker.stop()
    except (BrokerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    os.umask(0o077)
    raise SystemExit(main())
