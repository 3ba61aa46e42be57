"""The ``reknit`` command and its conventions: exit codes, JSON lines on stdout, messages and logs on stderr.

The group imports a command when it runs: ``normalize`` does not import the stream engine, ``--help`` imports nothing.
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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, Literal, NoReturn, TextIO

import click

from reknit import pipeline
from reknit.pipeline.errors import BrokerDownError, ReknitError, error_name, expected_one_of

if TYPE_CHECKING:
    import structlog

# Command name -> (its module and function, its line in --help). The line is here because --help must not import.
COMMANDS: dict[str, tuple[str, str]] = {
    "normalize": (
        "reknit.pipeline.cli.offline:normalize_command",
        "Mend a history into a request that the target accepts.",
    ),
    "validate": ("reknit.pipeline.cli.offline:validate_command", "Judge a request body by its provider's rules."),
    "recover": ("reknit.pipeline.cli.offline:recover_command", "Turn raw provider events into items."),
    "explain": ("reknit.pipeline.cli.offline:explain_command", "Say what a fix or a rule means."),
    "test": ("reknit.pipeline.cli.offline:test_command", "Check histories of your own against every promise."),
    "demo": ("reknit.pipeline.demo:demo_command", "Run the whole pipeline on recorded sessions."),
    "serve": (
        "reknit.pipeline.cli.serve:serve_command",
        "Repair the requests of agents on their way to providers.",
    ),
    "repair": (
        "reknit.pipeline.cli.repair:repair_command",
        "Repair a session file of Claude Code, Codex or the Gemini CLI.",
    ),
    "convert": (
        "reknit.pipeline.cli.convert:convert_command",
        "Convert a history into the shape of another framework.",
    ),
    "heal": (
        "reknit.pipeline.cli.heal:heal_command",
        "Print a request without what its provider refused.",
    ),
    "worker": ("reknit.pipeline.cli.running:worker_command", "Run a worker until it is stopped."),
    "ingest": (
        "reknit.pipeline.cli.ingest:ingest_group",
        "Pipe turns, provider events or requests to providers into their topic.",
    ),
    "send": ("reknit.pipeline.cli.send:send_command", "Send published requests, and feed the answers back."),
    "inspect": (
        "reknit.pipeline.cli.sessions:inspect_command",
        "Show what the topics and the state hold of a session.",
    ),
    "sessions": ("reknit.pipeline.cli.sessions:sessions_group", "List sessions, and release those that are parked."),
    "dead-letters": (
        "reknit.pipeline.cli.dead_letters:dead_letters_group",
        "List, show, count, retry and drop records that could not be processed.",
    ),
    "viewer": ("reknit.pipeline.cli.running:viewer_command", "Show sessions, fixes and streams in a browser."),
    "screens": (
        "reknit.pipeline.cli.screens:screens_group",
        "Serve sessions to UI clients: AG-UI, the AI SDK, items.",
    ),
    "feedback": (
        "reknit.pipeline.cli.reports:feedback_group",
        "List what providers refused of published requests, and what the rules say of it.",
    ),
    "replay": ("reknit.pipeline.cli.replay:replay_group", "Process again, beside the live pipeline, what it has read."),
    "report": (
        "reknit.pipeline.cli.reports:report_command",
        "Say what is or would be mended, and which of the providers' errors that prevents.",
    ),
    "export": ("reknit.pipeline.cli.sessions:export_command", "Print a session as a document that restores it."),
    "import": ("reknit.pipeline.cli.sessions:import_command", "Restore sessions from what `export` printed."),
    "diff": ("reknit.pipeline.cli.reports:diff_command", "Compare what two runs over the same input published."),
    "forget": ("reknit.pipeline.cli.forget:forget_command", "Have a session forgotten, and say what still holds it."),
    "objects": ("reknit.pipeline.cli.forget:objects_group", "Delete large values that no record names any more."),
    "config": ("reknit.pipeline.cli.config:config_group", "Show the configuration and where each value comes from."),
    "topics": ("reknit.pipeline.cli.topics:topics", "List, create, compare and check topics; print their schemas."),
}


class Group(click.Group):
    """A group that suggests a command for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command: {expected_one_of(self.list_commands(ctx), args[0])}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Imports a command's module when the command is run."""

    running = ""
    """The name of the command that runs."""

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as click has it
        """Run as click does, and report a file that cannot be read or written in one sentence."""
        if sys.stdout is None:  # closed by the caller, as in `reknit … >&-`
            os.write(2, b"reknit: standard output is closed; redirect it to a file or to /dev/null\n")
            raise SystemExit(int(Exit.UNUSABLE))
        try:
            return super().main(*args, **options)
        except OSError as error:
            fail_to_write(error)
        except ModuleNotFoundError as error:
            fail_without_extra(self.running, error)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the README."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None for an unknown name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        self.running = cmd_name
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101  a typo in the table above, found by its test
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table of commands without importing any of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    # Click's own option takes a text, which would read the package's metadata in every command.
    if asked and not ctx.resilient_parsing:
        click.echo(f"reknit, version {pipeline.__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """The stream pipeline between agents and model providers.

    Commands read stdin or files and write JSON lines to stdout; words for people go to stderr.
    Exit codes: 0 clean, 2 unusable input or arguments, 3 mended, 4 rejected, 75 what may pass (no broker answers).
    """
    # The client logs each refused connection. A command reports once that no broker answers.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


# Output and exit codes.


class Exit(IntEnum):
    """The exit code of a command."""

    CLEAN = 0
    UNUSABLE = 2
    MENDED = 3
    DIFFERENT = 3
    REJECTED = 4
    # Temporary (EX_TEMPFAIL): no broker answers.
    DOWN = 75


# The first bytes of a zstd frame.
_ZSTD = b"\x28\xb5\x2f\xfd"
# From best to worst: of many documents, the worst decides.
_SEVERITY = (Exit.CLEAN, Exit.MENDED, Exit.REJECTED, Exit.UNUSABLE, Exit.DOWN)


def worst(codes: list[Exit]) -> Exit:
    """Return the exit code of several documents; no documents are clean."""
    return max(codes, key=_SEVERITY.index, default=Exit.CLEAN)


def read_input(file: str) -> bytes:
    """Read a whole file, or stdin for ``-``, and decompress zstd, which older transcripts may use."""
    data = stdin().read() if file == "-" else Path(file).read_bytes()
    if not data.startswith(_ZSTD):
        return data
    import cramjam

    return bytes(cramjam.zstd.decompress(data))


def stdin() -> BinaryIO:
    """Return standard input in bytes.

    Raises:
        OSError: it is closed, as in ``reknit … <&-``. For a folder as input the interpreter fails before this runs.
    """
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard input")
    return sys.stdin.buffer


def write_json(value: Any) -> None:  # noqa: ANN401  anything that msgspec encodes
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n")


def write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """Write a message to stderr; a style of it is for terminals."""
    click.echo(text, err=True, color=colour_mode())


def colour_mode() -> bool | None:
    """Return False if the environment refuses colours (https://no-color.org); None: it depends on the stream."""
    return False if os.environ.get("NO_COLOR") else None


def describe(error: ReknitError) -> dict[str, str]:
    """Return a typed error as the JSON of reports."""
    found = {"code": error.code, "rule": error.rule or "", "path": error.path, "message": error.message}
    return {key: value for key, value in found.items() if value} | {"fault": error.fault}


# Commands whose packages are in an extra of another name than ``client``.
EXTRAS: Final = MappingProxyType(
    {
        "worker": "worker",
        "replay": "worker",
        "serve": "serve",
        "viewer": "viewer",
        "screens": "screens",
        "demo": "embedded",
    }
)
# Packages of the extras, by the names under which they are imported.
_OPTIONAL: Final = frozenset(
    {"aiohttp", "aiokafka", "cramjam", "faust", "jinja2", "mode", "prometheus_client", "structlog", "uvloop"}
)


def fail_without_extra(command: str, error: ModuleNotFoundError) -> NoReturn:
    """Name the extra that a command needs and that is not installed; raise any other error again."""
    if (error.name or "").partition(".")[0] not in _OPTIONAL:
        raise error
    extra = EXTRAS.get(command, "client")
    say(f"reknit {command} needs the package {error.name}: pip install 'reknit[{extra}]'")
    raise SystemExit(int(Exit.UNUSABLE)) from error


def fail(error: ReknitError) -> NoReturn:
    """Report the error and exit: with 75 if it may pass, else with 2."""
    say(f"reknit: {error}")
    raise SystemExit(exit_of(error))


# Errors of a full, closed or missing file.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def fail_to_write(error: OSError) -> NoReturn:
    """Report the file that cannot be written or read, and exit; raise other system errors again."""
    if error.filename is None and error.errno not in _UNWRITABLE:
        raise error
    # A buffer with data would fail again when the process exits.
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    say(f"reknit: {error.filename or 'the output'}: {error.strerror}")
    raise SystemExit(int(Exit.UNUSABLE)) from None


def exit_of(error: ReknitError) -> int:
    """Return the exit code for an error that ends a command."""
    return int(Exit.DOWN if isinstance(error, BrokerDownError) else Exit.UNUSABLE)


# Interval of progress messages.
_PROGRESS_SECONDS = 2.0


class Progress:
    """Reports from time to time how many records were read, and of how many."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, done: int, every: int) -> None:
        if time.monotonic() - self._said > _PROGRESS_SECONDS:
            self._said = time.monotonic()
            say(f"reknit: {done} of {every} records looked at")


# Logs of a process that Reknit starts.


class CalmHandler(logging.StreamHandler[TextIO]):
    """Limits repeated records: writes the first few of a window, and at its end only how many more there were.

    A client without a broker logs each attempt of each connection, hundreds per second, and both programming errors and
    refused connections with a traceback. The engine logs what matters of it.
    """

    # Logger prefix -> (records of one wording that are written, the seconds of the window).
    BOUNDS: ClassVar[dict[str, tuple[int, float]]] = {
        "aiokafka": (1, 10.0),
        "asyncio": (1, 10.0),
        "faust": (1, 10.0),
        "mode": (1, 10.0),
        "reknit.pipeline.engine": (1, 10.0),  # mode's log of services
        "reknit.dead-letters": (3, 1.0),
        "reknit.engine": (5, 10.0),
        "reknit.http": (3, 10.0),
    }

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._windows: dict[tuple[str, int, str], _Window] = {}  # by logger, level and wording

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record unless the window is full; first write the counts of windows that have ended."""
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
        if record.exc_info and record.exc_info[1] is not None and not within(record.name, "reknit"):
            record.msg, record.args = f"{record.getMessage()}: {error_name(record.exc_info[1])}", ()
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
            # This line is the first of the next window.
            self._windows[key] = _Window(now + window.seconds, window.seconds, written=1)
            super().emit(last)


class _Window:
    """One window: the records written in it, and the number and the last of those left out."""

    def __init__(self, ends: float, seconds: float, written: int = 0) -> None:
        self.ends = ends
        self.seconds = seconds
        self.written = written
        self.left_out = 0
        self.last: logging.LogRecord | None = None


def within(name: str, logger: str) -> bool:
    return name == logger or name.startswith(f"{logger}.")


# They build a log record for each message even if none is shown, and log their internals at INFO.
QUIET = ("faust", "aiokafka", "mode")


def configure_logs(level: str = "info", form: Literal["text", "json"] = "text") -> None:
    """Log one line per event to stderr, as text or JSON, without content; call it once per process."""
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
