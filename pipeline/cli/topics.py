"""``reknit topics``: the declared topics, those of a cluster, and the files generated from their records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from msgspec import Struct

from reknit.pipeline.cli import Exit, Group, fail, say, write_bytes, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.check import check_command
from reknit.pipeline.cli.config import broker_options, configured, setting_option, wait_option
from reknit.pipeline.cli.recreated import accept_command, rebuild_command
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka.admin import Admin, connected, declared_topics
from reknit.pipeline.settings import Config
from reknit.topics import documents, qualified, topics_of
from reknit.topics.cluster import Difference, Wanted, altered, by_topic, kafka_acls, kafka_user, roles

_LAYOUT = (
    setting_option("source_prefix"),
    setting_option("partitions", type=int),
    setting_option("replication_factor", type=int),
)
_TIMEOUT = click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds for all of it."
)
_WRITE = click.option(
    "--write",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write files below this directory instead of printing them.",
)


def _layout_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_LAYOUT):
        command = option(command)
    return broker_options(command)


@click.group("topics", cls=Group)
def topics() -> None:
    """List, create, compare and check topics; print their schemas."""


topics.add_command(check_command)
topics.add_command(accept_command)
topics.add_command(rebuild_command)


@topics.command("list")
@_layout_options
def list_command(**options: Any) -> None:  # noqa: ANN401  click's options, as `configured` takes them
    """Print the declared topics, one per line, with every setting and its reason. Needs no broker."""
    config = configured(**options)
    for topic in topics_of(config.prefix, config.source_prefix):
        write_json(
            {
                "topic": qualified(topic.name, config.prefix),
                "direction": topic.direction,
                "summary": topic.summary,
                "key": topic.key,
                "partitions": config.partitions,
                "replication_factor": config.replication_factor,
                "settings": topic.settings_on(config.replication_factor),
            }
        )


@topics.command("diff")
@_layout_options
@wait_option
@_TIMEOUT
def diff_command(timeout: float, **options: Any) -> None:  # noqa: ANN401  as above
    """Compare the cluster's topics with the declared ones, without changing them.

    Exits with 0 if they are equal, 3 if `apply` would create topics, 4 if it would refuse.
    """
    outcomes = _on_cluster(configured(**options), timeout, compare)
    _print(outcomes)
    _leave(outcomes, missing=Exit.MENDED)


@topics.command("apply")
@click.option("--fix", is_flag=True, help="Alter settings that differ. Partitions and copies are never altered.")
@_layout_options
@wait_option
@_TIMEOUT
def apply_command(timeout: float, fix: bool, **options: Any) -> None:  # noqa: ANN401  as above
    """Create missing topics; refuse, and change nothing, if one differs from its declaration.

    Exits with 0 if all are as declared now, 4 if it refused.
    """

    def work(admin: Admin, declared: Sequence[Wanted]) -> Awaitable[list[Outcome]]:
        return apply(admin, declared, fix=fix)

    outcomes = _on_cluster(configured(**options), timeout, work)
    _print(outcomes)
    _leave(outcomes, missing=Exit.REJECTED)


@topics.command("acls")
@click.option(
    "--format",
    "form",
    type=click.Choice(["kafka-acls", "strimzi"]),
    default="kafka-acls",
    show_default=True,
    help="Lines for kafka-acls.sh, or KafkaUser resources of Strimzi for kubectl apply.",
)
@click.option("--cluster", default="kafka", show_default=True, help="The Kafka resource of Strimzi's users.")
@setting_option("source_prefix")
@broker_options
def acls_command(form: str, cluster: str, **options: Any) -> None:  # noqa: ANN401  as above
    """Print the minimal rights of each role: workers, producers, consumers and others. Needs no broker.

    A consumer's group begins with the name of its user.
    """
    config = configured(**options)
    for role in roles(config.prefix, config.source_prefix):
        if form == "strimzi":
            write_bytes(b"---\n")
            write_json(kafka_user(role, cluster))
            continue
        for line in kafka_acls(role, config.bootstrap_servers):
            write_bytes(f"{line}\n".encode())


@topics.command("schemas")
@_WRITE
def schemas_command(directory: Path | None) -> None:
    """Print the JSON Schemas of values and headers, one per line, or write them as files."""
    files = documents.schema_files()
    if directory is None:
        for text in files.values():
            write_json(msgspec.Raw(msgspec.json.format(text, indent=-1)))
    else:
        _write(directory, files)


@topics.command("asyncapi")
@_WRITE
def asyncapi_command(directory: Path | None) -> None:
    """Print the AsyncAPI document, or write it as a file."""
    files = _asyncapi()
    if directory is None:
        write_bytes(files[documents.ASYNCAPI_FILE])
    else:
        _write(directory, files)


@topics.command("compat")
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compat_command(old: Path) -> None:
    """List changes that break programs written for OLD, an AsyncAPI document of an earlier release.

    Exits with 0 if there are none, 4 otherwise.
    """
    try:
        before = msgspec.json.decode(old.read_bytes(), type=dict[str, Any])
        found = documents.breaches(before, msgspec.json.decode(_asyncapi()[documents.ASYNCAPI_FILE]))
    except (msgspec.DecodeError, KeyError) as error:
        fail(InputError("not_asyncapi", f"{old} is not an AsyncAPI document of Reknit: {error}"))
    for breach in found:
        write_json(breach)
    if found:
        raise SystemExit(int(Exit.REJECTED))


def _asyncapi() -> dict[str, bytes]:
    return documents.asyncapi_file((resources.files("reknit.topics") / "examples.jsonl").read_bytes())


def _on_cluster(
    config: Config, timeout: float, work: Callable[[Admin, Sequence[Wanted]], Awaitable[list[Outcome]]]
) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with connected(config, timeout) as admin:
            return await work(admin, declared_topics(config))

    return run_with_broker(config, run)


def _print(outcomes: Iterable[Outcome]) -> None:
    rows = [("topic", "setting", "wanted", "found", "")]
    for outcome in outcomes:
        write_json(outcome)
        say(f"{outcome.status}: {outcome.topic}")
        rows += [
            (d.topic, d.setting, d.wanted, d.found or "-", _WORDS[d.kind])
            for d in outcome.differences
            if d.kind != "missing"
        ]
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


_WORDS = {
    "setting": "differs; --fix alters it",
    "fixed": "cannot be altered: needs a new topic or a reassignment",
    "unknown": "the broker does not tell",
}


def _leave(outcomes: Iterable[Outcome], *, missing: Exit) -> None:
    statuses = {outcome.status for outcome in outcomes}
    if "drift" in statuses:
        raise SystemExit(int(Exit.REJECTED))
    if "missing" in statuses:
        raise SystemExit(int(missing))


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        say(f"wrote {path}")


# Comparison of a cluster with the declared topics.

# The controller makes a change; a broker that is asked receives it a moment later.
_LOOK_AGAIN_SECONDS = 0.1
_PROPAGATION_SECONDS = 5.0


class Outcome(Struct, frozen=True):
    """The result for a topic, and the differences that are left.

    ``drift`` was refused, ``missing`` was left out because another topic was refused.
    """

    topic: str
    status: Literal["unchanged", "created", "altered", "drift", "missing"]
    differences: list[Difference]


async def compare(admin: Admin, wanted: Sequence[Wanted]) -> list[Outcome]:
    """Compare the cluster's topics with the declared ones, without changing them."""
    return [_as_found(name, found) for name, found in (await _differences(admin, wanted)).items()]


async def apply(admin: Admin, wanted: Sequence[Wanted], *, fix: bool = False) -> list[Outcome]:
    """Create missing topics and, with ``fix``, change the settings that can be changed.

    If one topic must be refused, nothing is changed: topics with two partition counts would be worse than none.
    """
    before = await _differences(admin, wanted)
    if any(_is_refused(difference, fix=fix) for found in before.values() for difference in found):
        return [_as_found(name, found) for name, found in before.items()]
    await admin.create(topic for topic in wanted if _has("missing", before[topic.name]))
    drifted = [topic for topic in wanted if _has("setting", before[topic.name])]
    there = await admin.describe({topic.name for topic in drifted})
    for topic in drifted:
        await admin.alter(topic.name, altered(topic, there[topic.name]))
    after = await _propagated(admin, wanted)
    return [_as_made(name, before[name], found) for name, found in after.items()]


async def _differences(admin: Admin, wanted: Sequence[Wanted]) -> dict[str, list[Difference]]:
    return by_topic(wanted, await admin.describe({topic.name for topic in wanted}))


async def _propagated(admin: Admin, wanted: Sequence[Wanted]) -> dict[str, list[Difference]]:
    """Return the differences that are left once the broker has received the changes."""
    clock = asyncio.get_running_loop().time
    end = clock() + _PROPAGATION_SECONDS
    after = await _differences(admin, wanted)
    while clock() < end and any(_as_found(name, found).status != "unchanged" for name, found in after.items()):
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        after = await _differences(admin, wanted)
    return after


def _has(kind: str, found: Sequence[Difference]) -> bool:
    return any(difference.kind == kind for difference in found)


def _is_refused(difference: Difference, *, fix: bool) -> bool:
    return difference.kind == "fixed" or (difference.kind == "setting" and not fix)


def _as_found(name: str, found: list[Difference]) -> Outcome:
    if _has("missing", found):
        return Outcome(name, "missing", found)
    return Outcome(name, "drift" if _has("fixed", found) or _has("setting", found) else "unchanged", found)


def _as_made(name: str, before: list[Difference], after: list[Difference]) -> Outcome:
    now = _as_found(name, after)
    if now.status != "unchanged":
        return now
    if _has("missing", before):
        return Outcome(name, "created", after)
    return Outcome(name, "altered" if _has("setting", before) else "unchanged", after)
