"""Configuration: one frozen struct from a TOML file, ``REKNIT_*`` variables and options, in rising order.

Keys are the same everywhere. ``session.policy.tail`` is ``[session.policy] tail = …`` in the file,
``REKNIT_SESSION__POLICY__TAIL`` in the environment (two underscores go down a level) and the key
``"session.policy.tail"`` among the options. A variable or option is text: numbers and booleans are read from it, lists
and tables as JSON, a list of names also with commas. An empty variable counts as not set. Tables merge key by key, down
to a parameter of ``session.params``, which is replaced whole. After ``REKNIT_KAFKA`` one underscore goes down too, as
other programs name these settings. Secrets stand in the environment or in files of their own.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct, ValidationError
from msgspec.inspect import DictType, LiteralType, Metadata, StructType, Type, type_info

from pipeline.errors import InputError
from pipeline.kafka import SECRETS, KafkaSettings
from pipeline.model import Policy
from pipeline.objects import ObjectSettings
from pipeline.stages.limits import Limits
from pipeline.text import MARKER, SOURCE_ROOTS
from topics.declarations import DEFAULT_PARTITIONS

PREFIX = "REKNIT_"
Key: TypeAlias = tuple[str, ...]
# Variables of the same prefix that are not configuration: where the file is, and what the tests are told.
OTHER_VARIABLES = frozenset({"REKNIT_CONFIG", "REKNIT_CORPUS", "REKNIT_REQUIRE_KAFKA"})

HIDDEN = "(hidden)"

_MIB = 1024 * 1024


class ConfigError(InputError):
    """A setting that does not exist or cannot have its value. ``path`` is the key, the message names the source."""


class SessionDefaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for a session that did not say otherwise in ``session.opened``."""

    targets: Annotated[tuple[str, ...], Meta(min_length=1, description="Whom requests are written for.")] = (
        "anthropic",
    )
    model: Annotated[str | None, Meta(description="The model of requests.")] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="The longest answer; each target has its own name for it.")
    ] = None
    params: Annotated[
        dict[str, Raw],
        Meta(description="Other parameters by the target's own names, such as temperature; they win over max_tokens."),
    ] = {}
    policy: Policy = Policy()
    system: Annotated[str | None, Meta(description="The system prompt.")] = None
    tools: Annotated[tuple[Raw, ...], Meta(description="The tools, as JSON in any shape that Reknit reads.")] = ()


class StateSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    memory_mib: Annotated[
        int, Meta(ge=1, description="Memory for sessions at work; those that were quiet for longest are compressed.")
    ] = 512
    store: Annotated[
        Literal["memory", "disk"], Meta(description="Where these lie; on disk below state_dir, for a quick restart.")
    ] = "memory"
    format: Annotated[
        Literal[1, 2], Meta(description="1 lets workers of 0.1 run beside this one; 2 writes only what is new.")
    ] = 2


class TextSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is changed in the words of planners that speak text only (source ``cascade``)."""

    redact_roots: Annotated[
        tuple[str, ...],
        Meta(description="Absolute paths of the planner's own machine, `{id}` stands for an id; none redacts nothing."),
    ] = SOURCE_ROOTS
    redact_marker: Annotated[str, Meta(description="Stands for such a path with all that follows it.")] = MARKER


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker and the commands beside it need to know. Sizes are in bytes, times in the unit of their name.

    The engine's bounds that depend on the place are here too (pipeline.engine.interface.Tuning has the same names and
    defaults).
    """

    bootstrap_servers: Annotated[
        str,
        Meta(pattern=r"^[^\s,]+:\d+(,[^\s,]+:\d+)*$", description="The brokers, HOST:PORT, several with commas."),
    ] = "localhost:9092"
    kafka: KafkaSettings = KafkaSettings()
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^[a-zA-Z0-9._-]{0,100}$",
            description="Stands before every topic, group and transactional id: two pipelines differ in nothing else.",
        ),
    ] = ""
    partitions: Annotated[
        int,
        Meta(ge=1, description="Partitions of each topic that `topics apply` makes; a worker takes what topics have."),
    ] = DEFAULT_PARTITIONS
    replication_factor: Annotated[
        int, Meta(ge=1, le=32767, description="Copies of each topic that `topics apply` makes.")
    ] = 1
    delivery: Annotated[
        Literal["exactly-once", "at-least-once"],
        Meta(description="What a crash may cost: nothing, or on brokers without transactions the same record twice."),
    ] = "exactly-once"

    metrics_host: Annotated[str, Meta(description="Address of /metrics, /livez and /readyz.")] = "127.0.0.1"
    metrics_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of these; 0 takes a free one, which is shown at the start.")
    ] = 9464
    state_dir: Annotated[str, Meta(min_length=1, description="For what one worker writes locally.")] = ".reknit"

    batch_records: Annotated[
        int, Meta(ge=1, description="Records that one transaction holds at most; it begins as soon as there is one.")
    ] = 8_000
    batch_bytes: Annotated[int, Meta(ge=1, description="Bytes that one transaction holds at most.")] = 32 * _MIB
    commit_interval_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="A partition's next transaction begins so many milliseconds after its last one at the "
            "earliest: fewer and larger ones cost the brokers less, and records wait that long at most.",
        ),
    ] = 0
    transaction_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=900,
            description="The broker aborts a transaction that is open longer, and hides what follows until then.",
        ),
    ] = 25.0
    stall_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Records wait and nothing is committed for so long: the worker ends, so that another takes "
            "over. Longer than a transaction may take.",
        ),
    ] = 60.0
    session_seconds: Annotated[
        float, Meta(gt=0, description="How long a dead worker's partitions wait for a new owner; brokers want 6 s.")
    ] = 10.0
    heartbeat_seconds: Annotated[float, Meta(gt=0, description="How often a worker shows that it lives.")] = 2.0
    rebalance_seconds: Annotated[
        float, Meta(gt=0, description="How long the others wait for a worker in a rebalance.")
    ] = 20.0
    wait_seconds: Annotated[
        float, Meta(ge=0, description="Seconds to wait for a broker that does not answer yet, before the end with 75.")
    ] = 0.0
    stop_seconds: Annotated[
        float, Meta(gt=0, description="From SIGTERM to the end at most; orchestrators kill after 30 s by default.")
    ] = 20.0

    on_dead_letter: Annotated[
        Literal["go-on", "follow", "park", "stop"],
        Meta(
            description="After a record that could not be processed its session goes on without it; or its later "
            "records follow it into the dead letters until the history is restored; or they wait until the session is "
            "released; or the worker stops there."
        ),
    ] = "go-on"
    parked_records: Annotated[
        int, Meta(ge=0, description="Records that wait in a parked session at most; later ones are dead letters.")
    ] = 1_000
    parked_bytes: Annotated[int, Meta(ge=0, le=64 * _MIB, description="Bytes that wait there at most.")] = 8 * _MIB
    session: SessionDefaults = SessionDefaults()
    limits: Limits = Limits()
    objects: ObjectSettings = ObjectSettings()
    text: TextSettings = TextSettings()
    state: StateSettings = StateSettings()

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least that is logged.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="How, on stderr.")] = "text"


def load_config(
    toml_path: str | Path | None = None,
    env: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """Merge the file, the environment and the options into a configuration.

    Args:
        toml_path: the file; None means the one that ``REKNIT_CONFIG`` names, or none at all.
        env: the environment.
        overrides: options by dotted key (``session.model``); None means that the option was not given.

    Raises:
        ConfigError: a key does not exist, a value does not fit, or the file cannot be read. It says which source.
    """
    merged: dict[str, Any] = {}
    for key, value, _ in _every(toml_path, env, overrides or {}):
        _put(merged, key, value)
    return _decode(merged)


class Origin(Struct, frozen=True):
    """A key's value as it holds, and where it comes from. A secret's value is not shown, only that there is one."""

    key: str
    value: object
    source: str


def origins(
    toml_path: str | Path | None = None,
    env: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
) -> Iterator[Origin]:
    """Say of every key what ``load_config`` makes of the same sources, in the order of the configuration.

    Raises:
        ConfigError: as ``load_config``.
    """
    sources = {key: source for key, _, source in _every(toml_path, env, overrides or {})}
    config = load_config(toml_path, env, overrides)
    for key, kind in _TYPES.items():
        if isinstance(kind, StructType):
            continue
        value = _value(config, key)
        given = [source for place, source in sources.items() if place[: len(key)] == key]
        if key[-1] in SECRETS and value is not None:
            value = HIDDEN
        yield Origin(".".join(key), value, ", ".join(dict.fromkeys(given)) or "default")


def _every(
    toml_path: str | Path | None, env: Mapping[str, str], overrides: Mapping[str, object]
) -> Iterator[tuple[Key, object, str]]:
    """Every value that a source gives, with its key and the source; of two for one key the later one holds."""
    path = toml_path if toml_path is not None else env.get("REKNIT_CONFIG") or None
    for setting in chain(_from_file(path), _from_env(env), _from_options(overrides)):
        for key, value in _leaves(setting.key, setting.checked()):
            yield key, value, setting.source


class _Setting(Struct, frozen=True):
    """One value from one source; text is still to be read."""

    key: Key
    value: object
    source: str
    text: bool = False

    def checked(self) -> object:
        """The value, once it is known that the configuration takes it under its key."""
        problem = self._misspelt()
        if self._exposed():
            raise ConfigError("config_secret", f"{self.source}: {self._exposed()}", path=".".join(self.key))
        for value in _readings(self.value) if isinstance(self.value, str) and self.text else (self.value,):
            try:
                _decode(_nested(self.key, value))
            except ValidationError as error:
                problem = problem or str(error).partition(" - at `$")[0] + _choices(self.key)
            else:
                return value
        raise ConfigError("config_value", f"{self.source}: {problem}", path=".".join(self.key))

    def _misspelt(self) -> str:
        """What to say of a key that does not exist, with the nearest that does; nothing for one that does."""
        if self.key in _TYPES or isinstance(_TYPES.get(self.key[:-1]), DictType):
            return ""
        near = get_close_matches(".".join(self.key), [".".join(key) for key in _TYPES], n=1, cutoff=0.5)
        if not near:
            return "there is no such key"
        spelt = variable_of(near[0]) if self.source.startswith("variable ") else near[0]
        return f"there is no such key; did you mean {spelt}?"

    def _exposed(self) -> str:
        """What to say of a secret where others can read it: among the options, or in the file of all settings."""
        if self.key[-1:] not in [(name,) for name in SECRETS] or self.source.startswith("variable "):
            return ""
        name = ".".join(self.key)
        return f"a secret does not stand here; set {variable_of(name)}, or name a file in {name}_file"


def variable_of(key: str) -> str:
    """The environment variable of a dotted key."""
    return PREFIX + key.replace("kafka.", "kafka_").replace(".", "__").upper()


def _from_file(path: str | Path | None) -> Iterator[_Setting]:
    if path is None:
        return
    source = f"file {path}"
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config_unreadable", f"{source}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config_syntax", f"{source}: {error}") from error
    # Value by value, so that an error can name the one that is wrong.
    for key, value in _leaves((), table):
        yield _Setting(key, value, source)


def _from_env(env: Mapping[str, str]) -> Iterator[_Setting]:
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in OTHER_VARIABLES and env[name]:
            spelt = name.removeprefix(PREFIX).lower()
            if spelt.startswith("kafka_") and not spelt.startswith("kafka__"):
                spelt = spelt.replace("_", "__", 1)
            key = tuple(spelt.split("__"))
            yield _Setting(key, env[name], f"variable {name}", text=True)


def _from_options(overrides: Mapping[str, object]) -> Iterator[_Setting]:
    for name, value in overrides.items():
        if value is not None:
            yield _Setting(tuple(name.split(".")), value, f"option {name}", text=True)


def _readings(text: str) -> Iterator[object]:
    """What a text may stand for: JSON other than a string, itself, names with commas."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    if not isinstance(value, str):
        yield value
    yield text
    yield [part.strip() for part in text.split(",")]


def _leaves(key: Key, value: object) -> Iterator[tuple[Key, object]]:
    """The values below a key. Tables of the configuration are gone into; what a parameter holds is one value."""
    if isinstance(value, Mapping) and isinstance(_TYPES.get(key), StructType | DictType):
        for name, inner in value.items():
            yield from _leaves((*key, name), inner)
    else:
        yield key, value


def _put(table: dict[str, Any], key: Key, value: object) -> None:
    for name in key[:-1]:
        table = table.setdefault(name, {})
    table[key[-1]] = value


def _nested(key: Key, value: object) -> object:
    for name in reversed(key):
        value = {name: value}
    return value


def _decode(table: object) -> Config:
    # By way of JSON, since parameters and tools are kept as the raw JSON that requests will carry.
    return msgspec.json.decode(msgspec.json.encode(table), type=Config)


def _choices(key: Key) -> str:
    kind = _TYPES.get(key)
    return f"; one of {', '.join(map(str, kind.values))}" if isinstance(kind, LiteralType) else ""


class Described(Struct, frozen=True):
    """A setting's key, what it takes, its default and what is said of it."""

    key: str
    kind: Type
    default: object
    text: str


def described() -> Iterator[Described]:
    """Every setting, in the order of the configuration."""
    for key, kind in _TYPES.items():
        if not isinstance(kind, StructType):
            yield Described(".".join(key), kind, _value(Config(), key), _TEXTS[key])


def _value(config: Config, key: Key) -> object:
    value: object = config
    for name in key:
        value = getattr(value, name)
    return value


def _types(key: Key, kind: Type) -> Iterator[tuple[Key, Type, str]]:
    text = ""
    if isinstance(kind, Metadata):
        text = (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    yield key, kind, text
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _types((*key, field.name), field.type)


# Every key that there is, tables included, and what is said of it; the configuration itself is the empty key.
_TYPES: dict[Key, Type] = {key: kind for key, kind, _ in _types((), type_info(Config))}
_TEXTS: dict[Key, str] = {key: text for key, _, text in _types((), type_info(Config))}
