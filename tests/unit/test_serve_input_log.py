"""How long the end of an answer waits for the journal, and how often the sender does."""

import asyncio
import threading
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from input_brokers import InputBrokers
from sender_runs import until

from reknit.pipeline.serve import input_log
from reknit.pipeline.serve.input_log import InputLog, end_of_run
from reknit.pipeline.serve.journal import Journal
from reknit.pipeline.serve.journal_format import InputRecord
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS
from reknit.topics import headers as names


class SlowJournal(Journal):
    """Appends when it may, and counts the records."""

    def __init__(self, directory):
        super().__init__(directory)
        self.may_append = threading.Semaphore(0)
        self.appended = 0

    def append(self, records):
        self.may_append.acquire()
        super().append(records)
        self.appended += len(records)


@pytest.fixture
async def journal(tmp_path):
    return SlowJournal(tmp_path)


@asynccontextmanager
async def log_of(journal):
    log = InputLog(journal, InputBrokers().connect, GatewayMetrics())
    log.start()
    try:
        yield log
    finally:
        journal.may_append.release(1_000)
        await log.close()


def put(log, count):
    for _ in range(count):
        assert log.put(InputRecord(AGENT_TURNS, "s", b"{}", ()))


async def test_an_answer_waits_for_all_records_before_it_while_the_journal_stores_any(journal, monkeypatch):
    """Every wait ends too early, and each time some of the records were stored."""
    async with log_of(journal) as log:

        async def wait_for_a_part(waiting, _seconds):
            waiting.close()
            before = log._stored
            journal.may_append.release()
            while log._stored == before:  # noqa: ASYNC110  of a thread
                await asyncio.sleep(0.001)
            raise TimeoutError

        put(log, 1)
        while log._queue:  # noqa: ASYNC110  of a task
            await asyncio.sleep(0.001)
        put(log, 99)
        monkeypatch.setattr(input_log.asyncio, "wait_for", wait_for_a_part)
        await log.stored()
        monkeypatch.undo()
        assert journal.appended == 100


async def test_nothing_waits_for_a_journal_that_is_stalled_until_it_stores_again(journal, monkeypatch):
    waits = []
    async with log_of(journal) as log:

        async def wait_in_vain(waiting, seconds):
            waiting.close()
            waits.append(seconds)
            raise TimeoutError

        put(log, 1)
        monkeypatch.setattr(input_log.asyncio, "wait_for", wait_in_vain)
        await log.stored()
        await log.stored()
        assert (waits, journal.appended) == ([input_log._STALLED_SECONDS], 0)
        monkeypatch.undo()
        journal.may_append.release()
        while log._stored == 0:  # noqa: ASYNC110  of a thread
            await asyncio.sleep(0.001)
        put(log, 1)
        monkeypatch.setattr(input_log.asyncio, "wait_for", wait_in_vain)
        await log.stored()
        monkeypatch.undo()
        assert (len(waits), journal.appended) == (2, 1)


async def test_records_that_follow_each_other_are_sent_together(tmp_path, monkeypatch):
    monkeypatch.setattr(input_log, "_GATHER_SECONDS", 3_600)
    sent, found = [], []

    class CountingBrokers(InputBrokers):
        async def delivered(self, given):
            sent.append(len(given))

    class CountingJournal(Journal):
        def read(self):
            found.append(super().read())
            return found[-1]

    log = InputLog(CountingJournal(tmp_path), CountingBrokers().connect, GatewayMetrics())
    log.start()
    await until(lambda: found)  # from now on it waits for records
    for count in range(20):
        put(log, 1)
        await until(lambda count=count: log._stored > count)
    assert sent == []
    # The end of the gateway waits for no more of them.
    await log.close()
    assert sent == [20]


async def test_the_records_of_a_run_that_waited_are_read_in_one_step(tmp_path):
    """The thread of the journal is busy with new records, so each step of the sender takes long."""
    runs, pieces = 20, 30
    journal, brokers, steps = Journal(tmp_path), InputBrokers(), Counter()
    for seq in range(pieces):
        journal.append([piece(f"run{run}", seq) for run in range(runs)])
    journal.append([end_of_run(piece(f"run{run}", pieces - 1), "end of stream") for run in range(runs)])
    log = InputLog(journal, brokers.connect, GatewayMetrics())
    in_thread = log._in_thread

    async def counted(function, *arguments):
        steps[function.__name__] += 1
        return await in_thread(function, *arguments)

    log._in_thread = counted
    log.start()
    await brokers.ends(runs)
    await log.close()
    assert [value for _, _, value, _ in brokers.records if value] == [b"piece"] * runs * pieces
    assert steps["read_again"] <= runs


def piece(run, seq):
    return InputRecord(PROVIDER_EVENTS, "s", b"piece", ((names.RUN, run.encode()),), run, seq)
