"""Topics that change while the pipeline uses them: re-created inputs and changelogs, and smaller limits."""

import asyncio
import json
import re
import subprocess
import sys
from secrets import token_hex

import harness
import msgspec
import pipeline_lab as lab
import pytest
from build import user

from reknit.pipeline.kafka.admin import connected
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import POSITION
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    EVENTS_STATE,
    HISTORY_FIXES,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TURNS_STATE,
)
from reknit.topics.headers import FIRST, REQUEST_ID, TARGET
from reknit.topics.positions import UNMARKED, read_mark

pytestmark = pytest.mark.broker


# The last commit whose positions hold no topic ids.
WITHOUT_IDS = "5e982c6"


@pytest.fixture
async def pipeline(broker, prefix, tmp_path, free_port):
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        yield Pipeline(broker.bootstrap, prefix, fleet, tmp_path / "reknit.toml")


class Pipeline:
    def __init__(self, bootstrap, prefix, fleet, config):
        self.bootstrap, self.prefix, self.fleet, self._config = bootstrap, prefix, fleet, config

    async def start(self):
        worker = self.fleet.start()
        await worker.ready(60)
        return worker

    async def feed(self, rows):
        async with lab.Feeder(self.bootstrap, self.prefix, 5_000, rows) as feeder:
            await feeder.wait()

    async def drained(self):
        await lab.drained(self.bootstrap, self.prefix)

    async def read(self, topic):
        return await harness.read_all(self.bootstrap, self.prefix + topic, lab.PARTITIONS)

    async def recreate(self, *topics):
        names = [self.prefix + topic for topic in topics]
        await harness.recreate_topics(self.bootstrap, names, lab.PARTITIONS)

    async def run(self, *arguments):
        """Run a command of the pipeline; returns its exit code, its lines of JSON and its words."""
        place = ["--config", str(self._config), "--bootstrap-servers", self.bootstrap, "--prefix", self.prefix]
        command = [sys.executable, "-m", "reknit", *arguments, *place]
        done = await asyncio.to_thread(
            subprocess.run, command, check=False, capture_output=True, text=True, timeout=120
        )
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    async def alter(self, topic, size):
        async with connected(Config(bootstrap_servers=self.bootstrap)) as admin:
            await admin.alter(self.prefix + topic, {"max.message.bytes": str(size)})

    async def outputs(self):
        return {
            topic: await self.read(topic) for topic in (PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES, *lab.SOURCES)
        }

    async def marks(self):
        """Return the data of each changelog's last position record besides the position."""
        found = []
        for topic in (TURNS_STATE, EVENTS_STATE):
            for records in await self.read(topic):
                positions = [record for record in records if record.key == POSITION]
                found += [read_mark(record.value, record.headers) for record in positions[-1:]]
        return found

    async def set_back(self, records):
        """Commit the group's offsets N records earlier, as a worker does that commits late."""
        group = f"{self.prefix}reknit"
        for topic in lab.SOURCES:
            done = await harness.committed(self.bootstrap, group, self.prefix + topic)
            late = {number: max(0, offset - records) for number, offset in done.items()}
            await harness.commit(self.bootstrap, group, self.prefix + topic, late, "reknit")

    async def accept(self, topic, start="earliest"):
        """Accept an input, and return its bases by partition."""
        code, outcomes, words = await self.run("topics", "accept", topic, "--from", start)
        assert code == 0, words
        return [outcome["base"] for outcome in sorted(outcomes, key=lambda outcome: outcome["partition"])]

    async def outcome(self):
        return [record for records in await self.read(PROVIDER_REQUESTS) for record in records]

    async def requests(self):
        """The published requests by session, in order, each as its texts and its headers."""
        found = {}
        for record in (record for records in await self.read(PROVIDER_REQUESTS) for record in records):
            texts = re.findall(r'"(?:text|content)":"([^"]*)"', record.value.decode())
            found.setdefault(record.key.decode(), []).append((texts, dict(record.headers)))
        return found


def turns(sessions, text):
    return [
        (AGENT_TURNS, f"s{n}".encode(), json.dumps({"type": "turn.appended", "message": user(text)}).encode(), [])
        for n in sessions
    ]


def each_request_has_an_id_of_its_own(requests):
    ids = [headers[REQUEST_ID] for sent in requests.values() for _, headers in sent]
    assert len(ids) == len(set(ids))


async def test_an_input_that_was_recreated_while_the_worker_was_down_is_refused_and_then_accepted_whole(pipeline):
    await pipeline.start()
    await pipeline.feed([*turns(range(9), "one"), *turns(range(9), "two")])
    await pipeline.drained()
    assert await pipeline.fleet.workers[-1].stop() == 0
    before = await pipeline.read(AGENT_TURNS)
    await pipeline.recreate(AGENT_TURNS)
    # It grows past every stored position, so that no offset is out of range.
    await pipeline.feed(row for text in "abcd" for row in turns(range(12), text))
    refused = pipeline.fleet.start()
    assert await refused.wait(60) == 2
    command = f"`reknit topics accept {AGENT_TURNS} --from earliest --bootstrap-servers {pipeline.bootstrap} "
    assert f"{pipeline.prefix}{AGENT_TURNS} was re-created since partition" in refused.tail()
    assert f"{command}--prefix {pipeline.prefix}` continues with its first record" in refused.tail()
    assert "Traceback" not in refused.tail()
    assert sum(map(len, (await pipeline.requests()).values())) == 18
    bases = await pipeline.accept(AGENT_TURNS)
    assert bases == [len(records) for records in before]
    worker = await pipeline.start()
    await pipeline.drained()
    assert await worker.stop() == 0
    former = {AGENT_TURNS: lab.Former(before, bases)}
    await lab.audit(pipeline.bootstrap, pipeline.prefix, former=former)
    requests = await pipeline.requests()
    each_request_has_an_id_of_its_own(requests)
    texts, headers = requests["s3"][-1]
    assert texts == ["one", "two", "a", "b", "c", "d"]
    assert int(headers[FIRST]) > int(requests["s3"][0][1][FIRST])
    code, outcomes, _ = await pipeline.run("topics", "accept", AGENT_TURNS, "--from", "earliest")
    assert (code, {outcome["status"] for outcome in outcomes}) == (0, {"unchanged"})
    # A replay makes the same ids; it says nothing of sessions that began in the former topic.
    assert (await pipeline.run("replay", "--id", "after", "--metrics-port", "0"))[0] == 0
    replayed = f"{pipeline.prefix}replay.after."
    code, lines, words = await pipeline.run("diff", pipeline.prefix, replayed, "--expect-none", "--json")
    assert (code, lines[-1]["summary"]["compared"]["sessions"]) == (0, 3), words


async def test_an_input_that_is_recreated_under_a_worker_ends_it_before_a_record_is_skipped(pipeline):
    worker = await pipeline.start()
    await pipeline.feed(turns(range(20), "one"))
    await pipeline.drained()
    before = await pipeline.read(AGENT_TURNS)
    await pipeline.recreate(AGENT_TURNS)
    await pipeline.feed(turns(range(10, 40), "two"))
    while (await asyncio.to_thread(worker.ask, "/readyz"))[0] == 200:  # noqa: ASYNC110  another process
        await asyncio.sleep(0.1)
    assert await worker.wait(60) == 2
    said = [line for line in worker.log.read_text().splitlines() if "was re-created while the worker ran" in line]
    assert len(said) == 1
    assert f"`reknit topics accept {AGENT_TURNS} --from earliest" in said[0]
    again = pipeline.fleet.start()
    assert await again.wait(60) == 2
    bases = await pipeline.accept(AGENT_TURNS)
    last = await pipeline.start()
    await pipeline.drained()
    assert await last.stop() == 0
    await lab.audit(pipeline.bootstrap, pipeline.prefix, former={AGENT_TURNS: lab.Former(before, bases)})
    requests = await pipeline.requests()
    each_request_has_an_id_of_its_own(requests)
    assert {session: texts for session, [*_, (texts, _)] in requests.items()} == {
        f"s{n}": ["one"] * (n < 20) + ["two"] * (n >= 10) for n in range(40)
    }


async def test_a_changelog_that_is_recreated_under_a_worker_ends_it_and_a_rebuild_publishes_nothing_twice(pipeline):
    rows = lab.script(2)
    half = [row for row, _ in zip(rows, range(400), strict=False)]
    worker = await pipeline.start()
    await pipeline.feed([*turns(range(4), "one"), *half])
    await pipeline.drained()
    await pipeline.recreate(TURNS_STATE)
    await pipeline.feed(turns(range(4), "two"))
    assert await worker.wait(60) == 2
    assert f"{pipeline.prefix}{TURNS_STATE} was re-created while the worker ran" in worker.tail()
    again = pipeline.fleet.start()
    assert await again.wait(60) == 2
    assert (
        f"`reknit topics rebuild --bootstrap-servers {pipeline.bootstrap} --prefix {pipeline.prefix}`" in again.tail()
    )
    # The other one is re-created while no worker runs, and the group's offsets are those of a worker that was killed.
    await pipeline.recreate(EVENTS_STATE)
    await pipeline.set_back(3)
    published = await pipeline.outputs()
    code, outcomes, words = await pipeline.run("topics", "rebuild")
    assert code == 0, words
    assert {outcome["status"] for outcome in outcomes} == {"rebuilt"}
    assert await pipeline.outputs() == published
    last = await pipeline.start()
    await pipeline.drained()
    assert (await pipeline.requests())["s1"][-1][0] == ["one", "two"]
    await pipeline.feed(rows)
    await pipeline.drained()
    assert await last.stop() == 0
    await lab.audit(pipeline.bootstrap, pipeline.prefix)
    each_request_has_an_id_of_its_own(await pipeline.requests())
    code, outcomes, _ = await pipeline.run("topics", "rebuild")
    assert (code, {outcome["status"] for outcome in outcomes}) == (0, {"unchanged"})


async def test_an_output_too_large_for_its_topic_becomes_a_dead_letter_and_everything_else_continues(pipeline):
    limits = {PROVIDER_REQUESTS: 2_500, TURNS_STATE: 8_000, DEAD_LETTERS: 2_500}
    for topic, size in limits.items():
        await pipeline.alter(topic, size)
    long, longer = token_hex(3_000), token_hex(12_000)  # zstd halves them
    unreadable = f"no JSON: {longer}".encode()
    worker = await pipeline.start()
    rows = [*turns(range(40), "one"), *turns([3], long), *turns([7], longer), *turns(range(40), "two")]
    await pipeline.feed([*rows[:60], (AGENT_TURNS, b"s9", unreadable, []), *rows[60:]])
    await pipeline.drained()
    assert await worker.stop() == 0
    requests = await pipeline.requests()
    # The request of the long turn, and that of the turn after it, are too large; the session keeps both turns. A turn
    # that the changelog refuses is not taken.
    assert {session: [texts for texts, _ in sent] for session, sent in requests.items()} == {
        f"s{n}": [["one"]] if n == 3 else [["one"], ["one", "two"]] for n in range(40)
    }
    letters = [record for records in await pipeline.read(DEAD_LETTERS) for record in records]
    told = {
        (headers["reknit.error.code"], record.key): (record.value, headers)
        for record in letters
        for headers in [{name: value.decode() for name, value in record.headers}]
    }
    assert set(told) == {("size", b"s3"), ("state_size", b"s7"), ("not_json", b"s9")}
    assert len(letters) == 4
    value, headers = told["size", b"s3"]
    assert (value, headers["reknit.error.output-topic"]) == (None, PROVIDER_REQUESTS)
    assert (
        f"{pipeline.prefix}{PROVIDER_REQUESTS} takes no record of this size; its max.message.bytes is too small"
        in (headers["reknit.error.message"])
    )
    assert "`reknit topics apply --fix" in headers["reknit.error.message"]
    value, headers = told["state_size", b"s7"]
    assert value is None, "the dead letter's topic does not take it either"
    assert f"{pipeline.prefix}{TURNS_STATE} takes no record of this size" in headers["reknit.error.message"]
    value, headers = told["not_json", b"s9"]
    assert (value, headers["reknit.error.value-bytes"]) == (None, str(len(unreadable)))


async def test_offset_resets_other_builds_and_other_settings_leave_what_sessions_become_as_it_is(
    pipeline, build_at, tmp_path, free_port
):
    place = (pipeline.bootstrap, pipeline.prefix)
    older = lab.make_fleet(*place, tmp_path / "older", free_port, build=build_at(WITHOUT_IDS))
    # While members of the former build are in the group, the present one writes what they can read.
    present = lab.make_fleet(*place, tmp_path / "present", free_port, more="[state]\nformat = 2\n")
    settings = 'system = "Be brief."\ntargets = ["openai-chat"]\n'
    changed = lab.make_fleet(*place, tmp_path / "changed", free_port, more=settings)
    try:
        # The present build takes over from the former one, member by member, and back.
        first = older.start()
        await first.ready(60)
        await pipeline.feed(turns(range(8), "one"))
        await pipeline.drained()
        second = present.start()
        await second.ready(60)
        assert await first.stop() == 0
        await pipeline.feed(turns(range(8), "two"))
        await pipeline.drained()
        ids = [mark for mark in await pipeline.marks() if mark != UNMARKED]
        said = second.log.read_text().count("the position was stored without topic ids; from now on it has")
        assert said == len(ids) > 0
        third = older.start()
        await third.ready(60)
        assert await second.stop() == 0
        await pipeline.feed(turns(range(8), "three"))
        await pipeline.drained()
        assert await third.stop() == 0
        # An operator sets the group's offsets back; the next worker has other settings for new sessions.
        for topic in lab.SOURCES:
            offsets = dict.fromkeys(range(lab.PARTITIONS), 0)
            await harness.commit(pipeline.bootstrap, f"{pipeline.prefix}reknit", pipeline.prefix + topic, offsets)
        last = changed.start()
        await last.ready(60)
        await pipeline.feed(turns(range(12), "four"))
        await pipeline.drained()
        assert "the group's offset was moved by hand to 0, which changes nothing" in last.log.read_text()
        assert await last.stop() == 0
    finally:
        for fleet in (older, present, changed):
            fleet.end()
    requests = await pipeline.requests()
    words = ["one", "two", "three", "four"]
    kept = [(b"anthropic", words[: n + 1]) for n in range(4)]
    found = {session: [(headers[TARGET], texts) for texts, headers in sent] for session, sent in requests.items()}
    assert {f"s{n}": found.pop(f"s{n}") for n in range(8)} == {f"s{n}": kept for n in range(8)}
    assert found == {f"s{n}": [(b"openai-chat", ["Be brief.", "four"])] for n in range(8, 12)}
    each_request_has_an_id_of_its_own(requests)


async def test_a_rebuild_leaves_to_the_worker_what_a_release_had_still_to_publish(broker, prefix, tmp_path, free_port):
    await lab.make_topics(broker.bootstrap, prefix)
    place = (broker.bootstrap, prefix, tmp_path, free_port)
    with lab.make_fleet(*place, top='on_dead_letter = "park"\n') as fleet:
        pipeline = Pipeline(broker.bootstrap, prefix, fleet, tmp_path / "reknit.toml")
        worker = await pipeline.start()
        unusable = (
            AGENT_TURNS,
            b"s0",
            json.dumps({"type": "turn.appended", "message": {"role": "nobody"}}).encode(),
            [],
        )
        behind = [row for _ in range(400) for row in turns([0], "x" * 4_000)]
        await pipeline.feed([*turns(range(8), "one"), unusable, *behind])
        await pipeline.drained()
        published = len(await pipeline.outcome())
        await pipeline.feed(
            [(AGENT_TURNS, b"s0", json.dumps({"type": "session.released"}).encode(), []), *turns([1], "two")]
        )
        while len(await pipeline.outcome()) < published + 20:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)
        worker.kill()
        assert published + 20 <= len(await pipeline.outcome()) < published + 400, "killed while it releases"
        await pipeline.recreate(TURNS_STATE)
        before = await pipeline.outputs()
        code, _, words = await pipeline.run("topics", "rebuild")
        assert code == 0, words
        assert await pipeline.outputs() == before
        last = await pipeline.start()
        await pipeline.drained()
        assert await last.stop() == 0
        defaults = msgspec.structs.replace(lab.DEFAULTS, on_dead_letter="park")
        await lab.audit(broker.bootstrap, prefix, defaults)
        assert len(await pipeline.outcome()) == published + 401
        each_request_has_an_id_of_its_own(await pipeline.requests())
