"""Configuration: one frozen struct from a TOML file, ``REKNIT_*`` variables and options, in rising precedence.

Keys are the same everywhere. ``session.policy.tail`` is ``[session.policy] tail = …`` in the file,
``REKNIT_SESSION__POLICY__TAIL`` in the environment (two underscores separate levels) and the key
``"session.policy.tail"`` among the options. A variable or option is text: numbers and booleans are parsed, lists and
tables as JSON, a list of names also with commas. An empty variable counts as not set. Tables merge key by key, down to
a parameter of ``session.params``, which is replaced whole. After ``REKNIT_KAFKA`` one underscore separates levels too,
because other programs use these names. Secrets are in the environment or in files of their own.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, ValidationError
from msgspec.inspect import DictType, LiteralType, Metadata, StructType, Type, type_info

from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka import SECRETS
from reknit.pipeline.settings import NEEDS_FORMAT, Config
from reknit.pipeline.urls import HIDDEN, masked

PREFIX = "REKNIT_"
Key: TypeAlias = tuple[str, ...]
# Variables of the same prefix that are not configuration: the place of the file, and variables of the tests.
OTHER_VARIABLES = frozenset({"REKNIT_CONFIG", "REKNIT_CORPUS", "REKNIT_REQUIRE_KAFKA"})


class ConfigError(InputError):
    """A setting that does not exist or cannot have its value. ``path`` is the key, the message names the source."""


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


class Origin(Struct, frozen=True, omit_defaults=True):
    """A key's value as it holds, and where it comes from. Secrets, and credentials in URLs, are hidden.

    ``off`` names the features that are off with this value.
    """

    key: str
    value: object
    source: str
    off: tuple[str, ...] = ()


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
        shown = HIDDEN if key[-1] in SECRETS and value is not None else masked(value)
        off = _off(config) if key == ("state", "format") else ()
        yield Origin(".".join(key), shown, ", ".join(dict.fromkeys(given)) or "default", off)


def _off(config: Config) -> tuple[str, ...]:
    return tuple(name for name, least in NEEDS_FORMAT.items() if config.state.format < least)


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
        """Return the error of a key that does not exist, with the nearest one that does; "" for one that exists."""
        if self.key in _TYPES or isinstance(_TYPES.get(self.key[:-1]), DictType):
            return ""
        near = get_close_matches(".".join(self.key), [".".join(key) for key in _TYPES], n=1, cutoff=0.5)
        if not near:
            return "there is no such key"
        spelt = variable_of(near[0]) if self.source.startswith("variable ") else near[0]
        return f"there is no such key; did you mean {spelt}?"

    def _exposed(self) -> str:
        """Return the error of a secret where others can read it: among the options, or in the file of all settings."""
        if self.key[-1:] not in [(name,) for name in SECRETS] or self.source.startswith("variable "):
            return ""
        name = ".".join(self.key)
        return f"a secret must not be written here; set {variable_of(name)}, or name a file in {name}_file"


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
    """Yield the possible values of a text: JSON other than a string, itself, names with commas."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    if not isinstance(value, str):
        yield value
    yield text
    yield [part.strip() for part in text.split(",")]


def _leaves(key: Key, value: object) -> Iterator[tuple[Key, object]]:
    """Yield the values below a key. Tables of the configuration are entered; a parameter's value is one value."""
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
