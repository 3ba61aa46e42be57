"""How many partitions, workers and brokers a fleet of sessions needs, how much disk, and what breaks first.

    python deploy/capacity.py [--sessions 250000] [--working 0.1] [--store memory] ...
    python deploy/capacity.py --write docs/capacity.md

The first prints a plan for the load that you describe, the second rewrites the tables of the page. The numbers of
``COSTS`` were measured (docs/capacity.md says how); replace them by yours. Only the standard library is imported.
"""

# ruff: noqa: INP001 - a script by itself, not a package
from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Cost:
    """The cost of one unit, and its measurement."""

    amount: float
    unit: str
    what: str
    measured: str


_SESSION = "`bench_session.py`"
_WORKER = "`bench_worker.py`"
_PACING = "`bench_pacing.py`"
_STATE = "`bench_state.py`"

# Sessions of TURNS turns of TURN_BYTES bytes; what grows with a history is reckoned in proportion.
TURNS, TURN_BYTES = 50, 300
COSTS = {
    "turn_cpu": Cost(260, "µs", "a worker's CPU for a turn, requests included", f"{_SESSION}, {_WORKER}"),
    "event_cpu": Cost(45, "µs", "a worker's CPU for an event, items included", _WORKER),
    "batch_cpu": Cost(1_600, "µs", "a worker's CPU for a transaction, at the most", _PACING),
    "hot": Cost(101_000, "B", "memory of a session at work", _SESSION),
    "cold": Cost(6_700, "B", "memory of a cold session, without a disk store", _SESSION),
    "disk": Cost(8_400, "B", "a worker's disk for a session, with a disk store", _SESSION),
    "turn_in": Cost(120, "B", "a turn in `agent.turns.v1`, compressed", _SESSION),
    "turn_out": Cost(910, "B", "requests for a turn in `provider.requests.v1`, compressed", _SESSION),
    "turn_state": Cost(990, "B", "state for a turn in `pipeline.turns-state.v1`, compressed", _SESSION),
    "event_in": Cost(82, "B", "an event in `provider.events.v1`, compressed", _SESSION),
    "event_out": Cost(40, "B", "items for an event in `session.items.v1`, compressed", _SESSION),
    "event_state": Cost(260, "B", "state for an event in `pipeline.events-state.v1`, compressed", _SESSION),
    "state_read": Cost(4_500_000, "B", "state that a worker reads back in a second, compressed, at the least", _STATE),
    "idle_cpu": Cost(120_000, "µs", "a broker's CPU in a second, before any record", _PACING),
    "record_cpu": Cost(70, "µs", "a broker's CPU for an input with its outputs and state", _PACING),
    "transaction_cpu": Cost(500, "µs", "a broker's CPU for a transaction", _PACING),
}

# Days that a topic keeps what it is given, as topics are declared. State is compacted, but for the segment that is
# written: a day's, or as many bytes as Kafka's own default for a segment.
KEPT_DAYS = {"turn_in": 30, "turn_out": 7, "turn_state": 1, "event_in": 7, "event_out": 7, "event_state": 1}
SEGMENT_BYTES = GIB

# The capacity of one process or machine. The last three depend on your machines.
WORKER_CORES = 0.6  # one process is one core; the rest is for peaks, and for a neighbour's partitions
WORKER_BYTES = 2 * GIB
WORKER_FIXED_BYTES = 250 * MIB
WORKER_HOT_BYTES = 512 * MIB  # [state] memory_mib
SKEW = 3.0  # the busiest partition relative to the mean one
FEWEST_PARTITIONS = 12
TRANSACTION_SECONDS = 0.005  # without an interval, the next batch gathers while one is written
FOLLOWER_CPU = 0.5  # a follower's CPU relative to its leader's: assumed, not measured
BROKER_CORES = 8 * 0.5
BROKER_DISK_BYTES = 2000 * GIB * 0.7
BROKER_BYTES_A_SECOND = 100 * MIB

# Beyond it sessions are read from their records more often, and nothing else happens.
SLOWS = {"the workers' memory for sessions at work"}


@dataclass(frozen=True)
class Load:
    """``working`` is the share of live sessions at work at the busiest time; each has a turn every ``turn_seconds``."""

    sessions: int = 100_000
    working: float = 0.1
    turn_seconds: float = 30.0
    turns: int = TURNS
    turn_bytes: int = TURN_BYTES
    answer_events: int = 40
    busy_hours: float = 8.0
    commit_interval_ms: float = 25.0
    replicas: int = 3
    store: str = "disk"

    @property
    def turn_rate(self) -> float:
        return self.sessions * self.working / self.turn_seconds

    @property
    def event_rate(self) -> float:
        """Every second turn is an answer, which streams."""
        return self.turn_rate / 2 * self.answer_events

    @property
    def history(self) -> float:
        """The length of a history relative to the measured one."""
        return self.turns * self.turn_bytes / (TURNS * TURN_BYTES)


@dataclass(frozen=True)
class Plan:
    """The requirements of a load, and the used share of each available resource."""

    load: Load
    partitions: int
    workers: int
    brokers: int
    worker_cores: float
    worker_bytes: float
    worker_disk_bytes: float
    broker_cores: float
    broker_bytes: float
    written_a_second: float
    restore_seconds: float
    used: dict[str, float]

    @property
    def breaks_first(self) -> str:
        return max(self.used.keys() - SLOWS, key=lambda name: self.used[name])


def plan(load: Load) -> Plan:
    """Work out what a load needs."""
    cost = {name: one.amount for name, one in COSTS.items()}
    for name in ("hot", "cold", "disk", "turn_out"):
        cost[name] *= load.history
    for name in ("turn_in", "turn_state"):
        cost[name] *= load.turn_bytes / TURN_BYTES
    hot = load.sessions * load.working * cost["hot"]
    cold = 0.0 if load.store == "disk" else load.sessions * cost["cold"]
    records_cpu = load.turn_rate * cost["turn_cpu"] + load.event_rate * cost["event_cpu"]
    partitions, wanted = 0, FEWEST_PARTITIONS
    while partitions < wanted:  # more workers want more partitions, which have more transactions
        partitions = wanted
        transactions = _transactions(load, partitions)
        worker_cores = (records_cpu + transactions * cost["batch_cpu"]) / 1e6
        workers = max(
            2,  # one may end at any time
            math.ceil(worker_cores / WORKER_CORES),
            math.ceil(hot / WORKER_HOT_BYTES),
            math.ceil((hot + cold) / (WORKER_BYTES - WORKER_FIXED_BYTES)),
        )
        # Two for each worker: its busiest partition is not all that it has, and there may be twice the workers.
        wanted = math.ceil(workers * 2 / FEWEST_PARTITIONS) * FEWEST_PARTITIONS
    records = load.turn_rate + load.event_rate
    leaders_cpu = records * cost["record_cpu"] + transactions * cost["transaction_cpu"]
    broker_cores = leaders_cpu / 1e6 * (1 + FOLLOWER_CPU * (load.replicas - 1))
    rates = {name: load.turn_rate if name.startswith("turn") else load.event_rate for name in KEPT_DAYS}
    written = sum(rates[name] * cost[name] for name in KEPT_DAYS) * load.replicas
    busy_seconds = load.busy_hours / 24 * DAY_SECONDS
    kept = {name: rates[name] * cost[name] * days * busy_seconds for name, days in KEPT_DAYS.items()}
    for name in ("turn_state", "event_state"):
        kept[name] = min(kept[name], partitions * SEGMENT_BYTES)
    broker_bytes = (sum(kept.values()) + load.sessions * cost["disk"]) * load.replicas
    state = kept["turn_state"] + kept["event_state"] + load.sessions * cost["disk"]
    brokers = max(
        load.replicas,
        math.ceil(broker_cores / (BROKER_CORES - cost["idle_cpu"] / 1e6)),
        math.ceil(broker_bytes / BROKER_DISK_BYTES),
        math.ceil(written / BROKER_BYTES_A_SECOND),
    )
    worker_bytes = WORKER_FIXED_BYTES + (hot + cold) / workers
    used = {
        "the workers' processors": worker_cores / workers / WORKER_CORES,
        "the workers' memory for sessions at work": hot / workers / WORKER_HOT_BYTES,
        "the workers' memory": (hot + cold) / workers / (WORKER_BYTES - WORKER_FIXED_BYTES),
        "the busiest partition, which one worker must do alone": worker_cores / partitions * SKEW,
        "the brokers' processors": broker_cores / brokers / (BROKER_CORES - cost["idle_cpu"] / 1e6),
        "the brokers' disks": broker_bytes / brokers / BROKER_DISK_BYTES,
        "what the brokers' disks can write": written / brokers / BROKER_BYTES_A_SECOND,
    }
    worker_disk = load.sessions / workers * cost["disk"] if load.store == "disk" else 0.0
    return Plan(
        load,
        partitions,
        workers,
        brokers,
        worker_cores,
        worker_bytes,
        worker_disk,
        broker_cores + brokers * cost["idle_cpu"] / 1e6,
        broker_bytes,
        written,
        state / workers / cost["state_read"],
        used,
    )


def _transactions(load: Load, partitions: int) -> float:
    """How many a second.

    A partition that has records waits an interval, or a transaction's time, and takes all that came meanwhile.
    """
    between = max(load.commit_interval_ms / 1000, TRANSACTION_SECONDS)
    return sum(rate / (1 + rate / partitions * between) for rate in (load.turn_rate, load.event_rate))


def size(amount: float) -> str:
    for unit, name in ((GIB * 1024, "TiB"), (GIB, "GiB"), (MIB, "MiB")):
        if amount >= unit:
            return f"{amount / unit:,.1f} {name}"
    return f"{amount / 1024:,.1f} KiB"


def table(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def costs_table() -> str:
    rows = [[one.what, f"{one.amount:,.0f} {one.unit}", one.measured] for one in COSTS.values()]
    return table([["what", "costs", "measured by"], *rows])


def plans_table(plans: list[Plan]) -> str:
    rows = [["live sessions", *(f"{one.load.sessions:,}" for one in plans)]]
    rows.append(["turns a second", *(f"{one.load.turn_rate:,.0f}" for one in plans)])
    rows.append(["events a second", *(f"{one.load.event_rate:,.0f}" for one in plans)])
    rows.append(["**partitions**", *(f"{one.partitions:,}" for one in plans)])
    rows.append(["**workers**", *(f"{one.workers:,}" for one in plans)])
    rows.append(["their processors, together", *(f"{one.worker_cores:,.1f} cores" for one in plans)])
    rows.append(["memory of each", *(size(one.worker_bytes) for one in plans)])
    rows.append(["disk store of each", *(size(one.worker_disk_bytes) for one in plans)])
    rows.append(["**brokers**", *(f"{one.brokers:,}" for one in plans)])
    rows.append(["their processors, together", *(f"{one.broker_cores:,.1f} cores" for one in plans)])
    rows.append(["written a second, all copies", *(size(one.written_a_second) for one in plans)])
    rows.append(["**disk**, all copies", *(size(one.broker_bytes) for one in plans)])
    rows.append(["ready without its volume within", *(f"{one.restore_seconds / 60:,.1f} minutes" for one in plans)])
    rows.append(["breaks first", *(one.breaks_first for one in plans)])
    rows.append(["at so many times the load", *(f"{1 / one.used[one.breaks_first]:.1f}" for one in plans)])
    return table(rows)


def with_tables(page: str) -> str:
    """Return the page with its tables rewritten, each between its two comments."""
    made = {
        "costs": costs_table(),
        "plans": plans_table([plan(Load(sessions)) for sessions in (10_000, 100_000, 1_000_000)]),
    }
    for name, text in made.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not end:
            raise SystemExit(f"the page has no place for the table of {name}")
        page = before + begin + text + end + after
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the page's tables anew")
    for one in fields(Load):
        choices = ["disk", "memory"] if one.name == "store" else None
        option = "--" + one.name.replace("_", "-")
        parser.add_argument(
            option, type=type(one.default), default=one.default, choices=choices, help=f"(default: {one.default})"
        )
    options = vars(parser.parse_args())
    page = options.pop("write")
    if page is not None:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
        return
    found = plan(Load(**options))
    sys.stdout.write(plans_table([found]) + "\n")
    for name, used in sorted(found.used.items(), key=lambda pair: -pair[1]):
        sys.stdout.write(f"{used:5.0%}  {name}\n")


if __name__ == "__main__":
    main()
