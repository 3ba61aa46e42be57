"""The plan of a schedule: input records, settings and faults. Everything is drawn before the run, so it can shrink."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field
from simulation.counting import LARGE, POISON, SOURCE
from simulation.sessions import SESSIONS, Script
from simulation.tape import Tape

PARTITIONS, WORKERS = 2, 2
# Sessions last 3 s, so some freezes and outages are shorter and some are longer.
FROZEN_SECONDS = (0.5, 4.0, 9.0)
OUTAGE_SECONDS = (0.3, 2.0, 12.0)
START_AGAIN_SECONDS = (0.2, 5.0)
FAULTY_REQUESTS = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "Produce",
    "EndTxn",
    "OffsetCommit",
    "JoinGroup",
    "Heartbeat",
)


class Row(Struct, frozen=True):
    """One input record; an empty value is null. ``pause`` is the time before it, in seconds."""

    partition: int
    key: str
    value: str
    aborted: bool
    pause: float
    topic: str = SOURCE
    headers: tuple[tuple[str, str], ...] = ()


class Fault(Struct, frozen=True, omit_defaults=True):
    """``at``: a virtual time, the number of a request of the kind ``request``, or a number of callbacks of a worker."""

    kind: str
    at: float = 0.0
    worker: int | None = None
    seconds: float = 0.0
    request: str = ""
    first: str = ""
    count: int = 0


class Settings(Struct, frozen=True, kw_only=True):
    """Small limits make rare paths common. The defaults are those of the simplest schedule.

    ``job`` is the work of the stages (``jobs``). ``release_records`` and ``on_dead_letter`` concern the real ones.
    """

    exactly_once: bool = True
    job: str = "counting"
    release_records: int = 64
    on_dead_letter: str = "go-on"
    batch_records: int = 20
    slice_records: int = 50
    batch_bytes: int = 1 << 20
    pending_records: int = 1000
    poll_records: int = 100
    commit_interval_ms: int = 0
    send_batch_bytes: int = 1 << 20
    formats: tuple[int, ...] = (1,)
    store: str = "memory"
    marker_seconds: float = 0.001
    latency_seconds: float = 0.002


CHOICES = {
    "batch_records": (1, 2, 5, 20),
    "slice_records": (1, 2, 3, 50),
    "batch_bytes": (300, 1500, 6000, 1 << 20),
    "pending_records": (2, 10, 1000),
    "poll_records": (1, 3, 100),
    "commit_interval_ms": (0, 0, 50),
    "send_batch_bytes": (400, 1 << 20),
    "formats": ((1,), (2,), (1, 2)),
    "store": ("memory", "memory", "disk"),
    "marker_seconds": (0.001, 0.03, 0.5),
    "latency_seconds": (0.002, 0.02, 0.3),
}


class Plan(Struct, frozen=True):
    """``cuts``: the number of draws that are kept, by stream (``tape``)."""

    seed: str
    settings: Settings
    rows: list[Row]
    faults: list[Fault]
    cuts: dict[str, int] = field(default_factory=dict)


SESSION_CHOICES = {
    # Outputs depend on the format, so it does not change within a schedule.
    "formats": ((1,), (2,), (3,), (3,)),
    "release_records": (1, 2, 64),
    "on_dead_letter": ("go-on", "follow", "park", "park"),
}


def plan_of(seed, *, exactly_once=True, job="counting"):
    stream = Tape(seed).stream("plan")
    choices = CHOICES | SESSION_CHOICES if job == "sessions" else CHOICES
    drawn = {name: stream.choice(found) for name, found in choices.items()}
    settings = Settings(exactly_once=exactly_once, job=job, **drawn)
    row, most = (_SessionRows(stream), 60) if job == "sessions" else (_row, 36)
    rows = [row(stream) for _ in range(4 + stream.below(most))]
    faults = [FAULTS[stream.below(len(FAULTS))](stream) for _ in range(1 + stream.below(6))]
    if job == "recreated":
        faults.append(Fault("recreate", round(stream.fraction() * 3, 3)))
    if job == "expired":
        faults += [Fault("expire", _time(stream), count=1 + stream.below(20)) for _ in range(2)]
    if not exactly_once:  # without a fence, workers that are cut off or stopped are the interesting ones
        faults += [stream.choice([_outage, _freeze])(stream) for _ in range(2)]
    return Plan(str(seed), settings, rows, faults)


class _SessionRows:
    """Draws rows of a few sessions, each in one partition of both inputs."""

    def __init__(self, stream):
        self._script = Script(stream)

    def __call__(self, stream):
        session = stream.below(SESSIONS)
        piece = self._script.next(session)
        aborted, pause = stream.fraction() < 0.05, stream.choice([0.0, 0.0, round(stream.fraction() ** 2 * 1.2, 4)])
        return Row(session % PARTITIONS, f"s{session}", piece.value, aborted, pause, piece.topic, piece.headers)


def _row(stream):
    value = stream.choice(["v"] * 10 + [POISON.decode(), LARGE.decode()])
    # Most records come in bursts, which fill batches.
    aborted, pause = stream.fraction() < 0.1, stream.choice([0.0, 0.0, round(stream.fraction() ** 2 * 1.2, 4)])
    return Row(stream.below(PARTITIONS), f"k{stream.below(3)}", value, aborted, pause)


def _time(stream):
    return round(stream.fraction() * 5, 3)


def _step(stream):
    """Return a number of callbacks; small ones are more frequent."""
    return 1 + int(stream.fraction() ** 2 * 1200)


def _worker(stream):
    return stream.below(WORKERS)


def _kill(stream):
    return Fault("kill", _step(stream), _worker(stream), stream.choice(START_AGAIN_SECONDS), count=stream.below(4))


def _freeze(stream):
    first = stream.choice(["timers", "answers"])
    return Fault("freeze", _step(stream), _worker(stream), stream.choice(FROZEN_SECONDS), first=first)


def _request(stream):
    kind = stream.choice(["answer lost", "request lost", "cut"])
    return Fault(
        kind, 1 + stream.below(12), seconds=round(stream.fraction() * 2, 3), request=stream.choice(FAULTY_REQUESTS)
    )


def _late_end(stream):
    return Fault("cut", 1 + stream.below(12), seconds=round(stream.fraction() * 2, 3), request="EndTxn")


def _outage(stream):
    worker = stream.choice([None, *range(WORKERS)])
    return Fault(stream.choice(["outage", "deaf"]), _time(stream), worker, stream.choice(OUTAGE_SECONDS))


def _starve(stream):
    return Fault("starve", _time(stream), _worker(stream), stream.choice([0.001, 0.02]))


def _disk(stream):
    kind = stream.choice(["flip bits", "full disk"])
    return Fault(kind, _time(stream), _worker(stream), stream.choice([0.5, 4.0]))


def _clock(stream):
    return Fault("clock jump", _time(stream), _worker(stream), stream.choice([-3600.0, 86400.0 * 400]))


def _operator(stream):
    return Fault("reset offset", _time(stream), count=stream.below(40))


def _rebalance(stream):
    return Fault("rebalance", _time(stream))


def _compact(stream):
    return Fault("compact", _time(stream))


# A fault that is listed twice is drawn twice as often.
FAULTS = (_kill, _kill, _freeze, _freeze, _rebalance, _rebalance, _request, _request, _request, _late_end, _outage)
FAULTS = (*FAULTS, _starve, _disk, _clock, _operator, _compact)

dump, load = msgspec.json.Encoder().encode, msgspec.json.Decoder(Plan).decode
