"""The ``reknit`` command, and how every command answers: exit codes, JSON lines to stdout, words and logs to stderr.

It is a lazy group, so that ``normalize`` does not pay for importing a stream engine, and ``--help`` for nothing at all.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TextIO

import click

from pipeline import __version__
from pipeline.errors import BrokerDownError, ReknitError, expected_one_of

if TYPE_CHECKING:
    import structlog

# Command name -> (where it lives, the line that --help shows). The line stands here, since showing it must not import.
COMMANDS: dict[str, tuple[str, str]] = {
    "normalize": (
        "pipeline.cli.offline:normalize_command",
        "Mend a history into a request that the target accepts.",
    ),
    "validate": ("pipeline.cli.offline:validate_command", "Judge a request body by its provider's rules."),
    "recover": ("pipeline.cli.offline:recover_command", "Turn raw provider events into items."),
    "explain": ("pipeline.cli.offline:explain_command", "Say what a fix or a rule means."),
    "test": ("pipeline.cli.offline:test_command", "Check histories of your own against every promise."),
    "demo": ("pipeline.demo:demo_command", "Run the whole pipeline on recorded sessions."),
    "worker": ("pipeline.cli.running:worker_command", "Run a worker until it is stopped."),
    "ingest": (
        "pipeline.cli.feeds:ingest_group",
        "Pipe turns, provider events or requests to providers into their topic.",
    ),
    "send": ("pipeline.cli.feeds:send_command", "Send published requests, and feed the answers back."),
    "inspect": (
        "pipeline.cli.sessions:inspect_command",
        "Show what the topics and the state hold of a session.",
    ),
    "sessions": ("pipeline.cli.sessions:sessions_group", "List sessions, and release those that are parked."),
    "dead-letters": (
        "pipeline.cli.dead_letters:dead_letters_group",
        "List, show, count, retry and drop records that could not be processed.",
    ),
    "viewer": ("pipeline.cli.running:viewer_command", "Show sessions, fixes and streams in a browser."),
    "feedback": (
        "pipeline.cli.reports:feedback_group",
        "List what providers refused of published requests, and what the rules say of it.",
    ),
    "replay": ("pipeline.cli.replay:replay_group", "Process again, beside the live pipeline, what it has read."),
    "report": (
        "pipeline.cli.reports:report_command",
        "Say what is or would be mended, and which of the providers' errors that prevents.",
    ),
    "export": ("pipeline.cli.sessions:export_command", "Print a session as a document that restores it."),
    "import": ("pipeline.cli.sessions:import_command", "Restore sessions from what `export` printed."),
    "diff": ("pipeline.cli.reports:diff_command", "Compare what two runs over the same input published."),
    "forget": ("pipeline.cli.forget:forget_command", "Have a session forgotten, and say what still holds it."),
    "objects": ("pipeline.cli.forget:objects_group", "Delete large values that no record names any more."),
    "config": ("pipeline.cli.config:config_group", "Show the configuration and where each value comes from."),
    "topics": ("pipeline.cli.topics:topics", "List, create and compare topics; print their schemas."),
}


class Group(click.Group):
    """A group that says which command may have been meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command: {expected_one_of(self.list_commands(ctx), args[0])}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Imports a command's module when the command is run."""

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as click has it
        """As click does; a place that cannot be written to is said in a sentence."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            fail_to_write(error)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the README."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or None where there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101  a typo in the table above, found by its test
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table of commands without importing any of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reknit")
def main() -> None:
    """The stream pipeline between agents and model providers.

    Commands read stdin or files and write JSON lines to stdout; words for people go to stderr.
    Exit codes: 0 clean, 2 unusable input or arguments, 3 mended, 4 rejected, 75 what may pass (no broker answers).
    """
    # The client logs each refused connection; commands say once, in their own words, that the broker is away.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


# How commands speak.


class Exit(IntEnum):
    """What a command found, as its exit code."""

    CLEAN = 0
    UNUSABLE = 2
    MENDED = 3
    DIFFERENT = 3
    REJECTED = 4
    # What may pass (EX_TEMPFAIL): a broker that is down.
    DOWN = 75


# How a frame of zstd begins.
_ZSTD = b"\x28\xb5\x2f\xfd"
# From best to worst: where many documents were read, the worst decides.
_SEVERITY = (Exit.CLEAN, Exit.MENDED, Exit.REJECTED, Exit.UNUSABLE, Exit.DOWN)


def worst(codes: list[Exit]) -> Exit:
    """The exit code of several documents; no document at all is clean."""
    return max(codes, key=_SEVERITY.index, default=Exit.CLEAN)


def read_input(file: str) -> bytes:
    """All of a file, or of stdin for ``-``; what is packed with zstd, as older transcripts may be, is unpacked."""
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    if not data.startswith(_ZSTD):
        return data
    import cramjam

    return bytes(cramjam.zstd.decompress(data))


def write_json(value: Any) -> None:  # noqa: ANN401  anything that msgspec encodes
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n")


def write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)


def describe(error: ReknitError) -> dict[str, str]:
    """A typed error as the JSON that reports carry."""
    found = {"code": error.code, "rule": error.rule or "", "path": error.path, "message": error.message}
    return {key: value for key, value in found.items() if value} | {"fault": error.fault}


def fail(error: ReknitError) -> NoReturn:
    """Say what is wrong and end: with the code for what may pass where it may, else with that for unusable input."""
    say(f"reknit: {error}")
    raise SystemExit(exit_of(error))


# What a place says that takes no more, or nothing at all.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def fail_to_write(error: OSError) -> NoReturn:
    """Say which place cannot be written or read, and end; other errors of the system are raised again."""
    if error.filename is None and error.errno not in _UNWRITABLE:
        raise error
    # What is still in the buffer would fail once more at the end of the process.
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    say(f"reknit: {error.filename or 'the output'}: {error.strerror}")
    raise SystemExit(int(Exit.UNUSABLE)) from None


def exit_of(error: ReknitError) -> int:
    """The exit code of a command that cannot do what it was asked for."""
    return int(Exit.DOWN if isinstance(error, BrokerDownError) else Exit.UNUSABLE)


# How often a command that reads for long says how far it is.
_PROGRESS_SECONDS = 2.0


class Progress:
    """Says now and then how many records of how many were looked at."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, done: int, every: int) -> None:
        if time.monotonic() - self._said > _PROGRESS_SECONDS:
            self._said = time.monotonic()
            say(f"reknit: {done} of {every} records looked at")


# How processes of our own log.


class CalmHandler(logging.StreamHandler[TextIO]):
    """Says what repeats a few times, and then, once some seconds are over, only how often more.

    A client without a broker reports each attempt of each connection, hundreds a second, and programming errors and
    refused connections alike with a traceback; the engine says in its own words what matters of it.
    """

    # How many records of one wording are let through in so many seconds, by the beginning of the logger's name.
    BOUNDS: ClassVar[dict[str, tuple[int, float]]] = {
        "aiokafka": (1, 10.0),
        "asyncio": (1, 10.0),
        "faust": (1, 10.0),
        "mode": (1, 10.0),
        "pipeline.engine": (1, 10.0),  # what mode says of our services
        "reknit.dead-letters": (3, 1.0),
        "reknit.engine": (5, 10.0),
    }

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._windows: dict[tuple[str, int, str], _Window] = {}  # by logger, level and wording

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless its like was written often enough; before it, what was left out and is due."""
        now = self._clock()
        self._say_left_out(now)
        bound = next((self.BOUNDS[name] for name in self.BOUNDS if within(record.name, name)), None)
        if bound is None:
            super().emit(record)
            return
        times, seconds = bound
        window = self._windows.setdefault(
            (record.name, record.levelno, str(record.msg)), _Window(now + seconds, seconds)
        )
        if window.written >= times:
            window.left_out += 1
            window.last = record
            return
        window.written += 1
        if record.exc_info and record.exc_info[0] is not None and not within(record.name, "reknit"):
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[0].__name__}", ()
            record.exc_info = record.exc_text = None
        super().emit(record)

    def close(self) -> None:
        self._say_left_out(float("inf"))
        super().close()

    def _say_left_out(self, now: float) -> None:
        for key, window in [entry for entry in self._windows.items() if now >= entry[1].ends]:
            if window.last is None:
                del self._windows[key]
                continue
            more, last = window.left_out - 1, window.last
            if more:
                last.msg, last.args = f"{last.getMessage()} (and {more} more like this)", ()
            last.exc_info = last.exc_text = None
            # This line counts as the first of the next seconds.
            self._windows[key] = _Window(now + window.seconds, window.seconds, written=1)
            super().emit(last)


class _Window:
    """The seconds in which so many records of one wording are written, and what was left out of them."""

    def __init__(self, ends: float, seconds: float, written: int = 0) -> None:
        self.ends = ends
        self.seconds = seconds
        self.written = written
        self.left_out = 0
        self.last: logging.LogRecord | None = None


def within(name: str, logger: str) -> bool:
    return name == logger or name.startswith(f"{logger}.")


# They build a log record for each message even where none is shown, and say at INFO what only they care about.
QUIET = ("faust", "aiokafka", "mode")


def configure_logs(level: str = "info", form: Literal["text", "json"] = "text") -> None:
    """Log one line an event on stderr, as text or JSON, without content; call it once, in a process of our own."""
    import structlog

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    handler = CalmHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
