"""The settings of a worker and of the other commands, with their texts for help and docs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from reknit.pipeline.kafka import Compression, KafkaSettings
from reknit.pipeline.objects import ObjectSettings
from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.upstreams import Publish, Upstream
from reknit.pipeline.stages.tenants import Limits
from reknit.pipeline.text.redaction import MARKER, SOURCE_ROOTS
from reknit.topics import DEFAULT_PARTITIONS

_MIB = 1024 * 1024


class SessionDefaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of a session, for options that ``session.opened`` does not set."""

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
        Literal[1, 2, 3],
        Meta(
            description="With 1, workers of 0.1 can run in the same group; 2 writes only what is new; 3 releases "
            "parked sessions in slices, keeps endpoints, results that come late and what reasoning is bound to, leaves "
            "out media beyond a target's limits, cuts long histories, and heals refused requests."
        ),
    ] = 3


# Features by the least format of state that they need; with a lower one they are off.
NEEDS_FORMAT = {
    "sliced release": 3,
    "endpoints": 3,
    "late results": 3,
    "limits of media": 3,
    "cuts of histories": 3,
    "prefix-bound reasoning": 3,
    "healing": 3,
}


class RequestSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    withdraw: Annotated[
        bool,
        Meta(
            description="Withdraw a published request when an assistant turn that no stream recorded answers it: "
            "publish a record with a null value and the reason `answered`. All senders must know these records."
        ),
    ] = False


class TextSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to the words of planners that output text only (source ``cascade``)."""

    redact_roots: Annotated[
        tuple[str, ...],
        Meta(
            description="Absolute paths of the planner's own machine; `{id}` represents an id. An empty list "
            "redacts nothing."
        ),
    ] = SOURCE_ROOTS
    redact_marker: Annotated[str, Meta(description="Replaces such a path with all that follows it.")] = MARKER


class ServeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `reknit serve`."""

    listen: Annotated[
        str, Meta(pattern=r"^\S+:\d+$", description="The address, HOST:PORT. All but loopback addresses need a key.")
    ] = "127.0.0.1:8787"
    upstream: Annotated[
        tuple[Upstream, ...],
        Meta(
            description="The providers, as tables `[[serve.upstream]]`; empty: the public APIs of Anthropic, OpenAI "
            "and Gemini under `/anthropic`, `/openai` and `/gemini`."
        ),
    ] = ()
    publish: Annotated[
        Publish,
        Meta(
            description="Records for the input topics: none (`off`), the answers, where the platform writes "
            "its own turns and names its session in `x-session-id` (`events`), or turns, requests and answers (`all`). "
            "`publish` of an upstream replaces it."
        ),
    ] = "off"
    drain_seconds: Annotated[float, Meta(gt=0, description="Most time for answers in progress after SIGTERM.")] = 120.0


class OtelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The export of spans by `reknit worker`, `send` and `serve`."""

    endpoint: Annotated[
        str,
        Meta(
            pattern=r"^(https?://\S+)?$",
            description="The collector of spans (OTLP over HTTP), such as `http://localhost:4318`; `/v1/traces` is "
            "added. Empty: the one that OTEL_EXPORTER_OTLP_ENDPOINT names, or none. Other settings are OpenTelemetry's "
            "own variables.",
        ),
    ] = ""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a worker and of the other commands. Sizes are in bytes, times in the unit of their name.

    It includes those limits of the engine that depend on the deployment. ``reknit.pipeline.engine.runtime.Tuning`` has
    the same names and defaults.
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
            description="Prefix of every topic, group and transactional id: two pipelines differ in nothing else.",
        ),
    ] = ""
    source_prefix: Annotated[
        Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{0,100}$")] | None,
        Meta(
            description="Prefix of the inputs that a worker reads, if they are another pipeline's; it then writes no"
            " input, and refuses a prefix that has inputs of its own.",
        ),
    ] = None
    publish: Annotated[
        tuple[str, ...],
        Meta(description="The outputs that a worker publishes, by their names without prefix; empty: all of them."),
    ] = ()
    partitions: Annotated[
        int,
        Meta(ge=1, description="Partitions of each topic that `topics apply` makes; a worker takes what topics have."),
    ] = DEFAULT_PARTITIONS
    replication_factor: Annotated[
        int, Meta(ge=1, le=32767, description="Copies of each topic that `topics apply` makes.")
    ] = 1
    delivery: Annotated[
        Literal["exactly-once", "at-least-once"],
        Meta(
            description="The possible cost of a crash: nothing, or on brokers without transactions a repeated record."
        ),
    ] = "exactly-once"

    metrics_host: Annotated[str, Meta(description="Address of /metrics, /livez and /readyz.")] = "127.0.0.1"
    metrics_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of these; 0 takes a free one, which is shown at the start.")
    ] = 9464
    state_dir: Annotated[str, Meta(min_length=1, description="For what one process writes locally.")] = ".reknit"

    batch_records: Annotated[
        int, Meta(ge=1, description="Records that one transaction holds at most; it begins as soon as there is one.")
    ] = 8_000
    batch_bytes: Annotated[int, Meta(ge=1, description="Bytes that one transaction holds at most.")] = 8 * _MIB
    compression: Annotated[
        Compression,
        Meta(
            description="The codec of the outputs. zstd costs least and makes them smallest; choose another one if a "
            "consumer cannot read it: kafkajs, for example, reads only gzip without a further package.",
        ),
    ] = "zstd"
    commit_interval_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Minimum milliseconds between a partition's transactions: fewer and larger ones cost the "
            "brokers less, and records wait that long at most.",
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
            description="The worker ends, so that another one takes over, if records wait and their partition does "
            "nothing for this time, although the process could run. Longer than a transaction may take.",
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
            description="After a record that could not be processed its session continues without it (`go-on`); or "
            "its later records follow it into the dead letters until the history is restored (`follow`); "
            "or they wait until the session is released (`park`); or the worker stops (`stop`)."
        ),
    ] = "go-on"
    parked_records: Annotated[
        int, Meta(ge=0, description="Records that wait in a parked session at most; later ones are dead letters.")
    ] = 1_000
    parked_bytes: Annotated[int, Meta(ge=0, le=64 * _MIB, description="Bytes that wait there at most.")] = 8 * _MIB
    session: SessionDefaults = SessionDefaults()
    limits: Limits = Limits()
    objects: ObjectSettings = ObjectSettings()
    requests: RequestSettings = RequestSettings()
    serve: ServeSettings = ServeSettings()
    otel: OtelSettings = OtelSettings()
    text: TextSettings = TextSettings()
    state: StateSettings = StateSettings()

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least that is logged.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="How, on stderr.")] = "text"

    @property
    def inputs_prefix(self) -> str:
        """The prefix of the inputs, which may belong to another pipeline."""
        return self.prefix if self.source_prefix is None else self.source_prefix
