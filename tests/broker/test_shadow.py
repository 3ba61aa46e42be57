"""A shadow: from a log of HTTP to the page, as in docs/shadow.md, and next to a live worker without a trace."""

import asyncio
import json
import re
import sys
from collections import Counter

import harness
import pipeline_lab as lab
import pytest
from aiokafka import TopicPartition
from test_docs import ROOT, Typed

from reknit.client import Brokers, Events
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

pytestmark = pytest.mark.broker

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_the_page_of_shadows_is_run_line_by_line(broker, prefix, tmp_path):
    (block,) = BLOCK.findall((ROOT / "docs" / "shadow.md").read_text("utf-8"))
    own = block.replace("seen.", f"{prefix}seen.").replace("shadow.", f"{prefix}shadow.")
    own = own.replace("report.html", f"{tmp_path}/report.html")
    apply, ingest, apply_beside, worker, report, page = own.splitlines()
    typed = Typed(broker.bootstrap, prefix, tmp_path, "")
    try:
        await typed.run(apply)
        fed = await typed.run(ingest)
        assert b"3 requests of 2 sessions to agent.turns.v1, 0 sent again; 1 lines passed over" in fed
        await typed.run(apply_beside)
        early = await typed.run(report)
        assert b"the worker has not read 8 records of agent.turns.v1 yet; the report covers the rest" in early
        await typed.start(worker)
        await seen_by_the_shadow(broker.bootstrap, f"{prefix}shadow.", mends=2)
        said = (await typed.run(report)).decode()
        await typed.run(page)
    finally:
        await typed.end()
    assert said.splitlines()[:6] == [
        "sessions: 2, of them mended: 2",
        "dead letters: 0 (records not processed: 0, requests rejected: 0, requests refused by providers: 0)",
        "",
        "Requests as they were sent, read from a log",
        "       2  anthropic  crew/1.4; would be refused: 1, leave mended: 1, rejected: 0",
        "       1  openai-chat  bots/2; would be refused: 1, leave mended: 1, rejected: 0",
    ]
    assert "`tool_use` ids were found without `tool_result` blocks immediately after" in said
    assert "<svg" in (tmp_path / "report.html").read_text("utf-8")


async def seen_by_the_shadow(bootstrap, prefix, mends):
    """Wait until the shadow has reported N repairs."""
    async with harness.reader(bootstrap) as reader, asyncio.timeout(240):
        reader.assign([TopicPartition(prefix + HISTORY_FIXES, number) for number in range(lab.PARTITIONS)])
        await reader.seek_to_beginning()
        for _ in range(mends):
            await reader.getone()


def shadow_command(bootstrap, prefix, source, directory):
    settings = directory / "shadow.toml"
    settings.write_text(f'source_prefix = "{source}"\nstate_dir = "{directory}/shadow"\n{lab.SETTINGS}')

    def command(port):
        place = ("--bootstrap-servers", bootstrap, "--prefix", prefix, "--metrics-port", str(port))
        return [sys.executable, "-m", "reknit", "worker", "--shadow", "--config", str(settings), *place]

    return command


async def rows(bootstrap, name):
    """Return the records of a topic by partition: the parts that must be equal in any partition."""
    parts = await harness.read_all(bootstrap, name, lab.PARTITIONS)
    return [[(record.key, record.value, tuple(record.headers)) for record in part] for part in parts]


async def refuse_every_other_request(bootstrap, prefix):
    """Answer the last request of every other session with words that no rule has; how many."""
    parts = await harness.read_all(bootstrap, prefix + PROVIDER_REQUESTS, lab.PARTITIONS)
    last = {record.key: dict(record.headers) for part in parts for record in part}
    refused = sorted(last.items())[::2]
    async with Events(Brokers(bootstrap_servers=bootstrap, prefix=prefix), "anthropic") as events:
        for key, headers in refused:
            session, request_id = key.decode(), headers["request-id"].decode()
            body = json.dumps({"error": {"type": "invalid_request_error", "message": f"not on a {session}"}}).encode()
            await events.feed(session, body, run="refused", request_id=request_id, status=400)
            await events.end_run(session, run="refused")
    return len(refused)


async def test_a_shadow_next_to_a_live_worker_gives_the_same_result_and_leaves_no_trace(
    broker, prefix, tmp_path, free_port
):
    bootstrap, beside = broker.bootstrap, f"{prefix}shadow."
    typed = Typed(bootstrap, prefix, tmp_path, "")
    await lab.make_topics(bootstrap, prefix)
    await typed.run(f"reknit topics apply --prefix {beside} --source-prefix {prefix} --partitions {lab.PARTITIONS}")
    shadows = harness.Fleet(shadow_command(bootstrap, beside, prefix, tmp_path), tmp_path, free_port)
    with lab.make_fleet(bootstrap, prefix, tmp_path / "live", free_port) as fleet, shadows:
        live, shadow = fleet.start(), shadows.start()
        await live.ready(60)
        await shadow.ready(60)
        async with lab.Feeder(bootstrap, prefix, 2_000, lab.script(1)) as feeder:
            await feeder.wait()
        await lab.drained(bootstrap, prefix)
        refused = await refuse_every_other_request(bootstrap, prefix)
        await lab.drained(bootstrap, prefix)
        await lab.drained(bootstrap, beside, source_prefix=prefix)
        assert live.running
        said = json.loads(await typed.run(f"reknit report --prefix {beside} --source-prefix {prefix} --json"))
    counted = await lab.audit(bootstrap, prefix)
    assert counted["sessions"] > 10
    for topic in (HISTORY_FIXES, DEAD_LETTERS):
        found, expected = [await rows(bootstrap, name + topic) for name in (beside, prefix)]
        assert list(map(sorted, found)) == list(map(sorted, expected))
    fixes = [value for part in await rows(bootstrap, prefix + HISTORY_FIXES) for _, value, _ in part]
    mends = Counter(json.loads(value)["code"] for value in fixes)
    assert sum(row["requests"] for row in said["answered"]) == refused > 10
    told = Counter()
    for row in said["mends"]:
        told[row["code"]] += row["mends"]
    assert told == mends
    for name in (PROVIDER_REQUESTS, SESSION_ITEMS, f"recorded.{AGENT_TURNS}", f"recorded.{PROVIDER_EVENTS}"):
        assert not any(await rows(bootstrap, beside + name)), name
    assert any(await rows(bootstrap, prefix + PROVIDER_REQUESTS))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "a shadow reads another pipeline's inputs: name it with --source-prefix"),
        ("--source-prefix {prefix}", "a shadow reads another pipeline's inputs"),
        ("--source-prefix {prefix}other.", "which is a live pipeline: it has inputs of its own"),
    ],
)
async def test_a_shadow_never_writes_to_a_live_prefix(broker, prefix, tmp_path, more, said):
    await lab.make_topics(broker.bootstrap, prefix)
    await lab.make_topics(broker.bootstrap, f"{prefix}other.")
    place = f"--bootstrap-servers {broker.bootstrap} --prefix {prefix} --metrics-port 0 --state-dir {tmp_path}"
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m reknit worker --shadow {place} {more.format(prefix=prefix)}", stdout=-1, stderr=-2
    )
    words, _ = await asyncio.wait_for(process.communicate(), 240)
    assert (process.returncode, said in words.decode()) == (2, True), words
