"""The users' words: each message is written once per process, and again only after a failure."""

import asyncio

import pytest

from reknit.pipeline.errors import BrokerDownError
from reknit.pipeline.screen_server import words
from reknit.pipeline.screen_server.words import Words

HI = {"role": "user", "content": "Hi"}


class Slow:
    """Turns that are appended once ``go_on`` is set; the first ``failures`` fail."""

    def __init__(self, failures=0):
        self.go_on, self.all, self._failures = asyncio.Event(), [], failures

    async def append(self, session, message, *, record_id, trace):
        await self.go_on.wait()
        if self._failures:
            self._failures -= 1
            raise BrokerDownError("broker_unreachable", "down")
        self.all.append((session, record_id, message))


@pytest.mark.asyncio
async def test_a_message_that_comes_again_meanwhile_is_written_once():
    turns = Slow()
    writer = Words(turns)
    waiting = [asyncio.create_task(writer.write("s", "m", HI)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # its client has disconnected
    turns.go_on.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in found] == [asyncio.CancelledError, type(None), type(None)]
    await writer.write("s", "m", HI)
    await writer.write("t", "m", HI)
    await writer.write("s", "n", HI)
    assert turns.all == [("s", "m", HI), ("t", "m", HI), ("s", "n", HI)]


@pytest.mark.asyncio
async def test_a_message_is_written_again_after_a_failure():
    turns = Slow(failures=1)
    turns.go_on.set()
    writer = Words(turns)
    with pytest.raises(BrokerDownError):
        await writer.write("s", "m", HI)
    await writer.write("s", "m", HI)
    await writer.write("s", "m", HI)
    assert turns.all == [("s", "m", HI)]


@pytest.mark.asyncio
async def test_a_bounded_number_of_messages_is_remembered(monkeypatch):
    monkeypatch.setattr(words, "_MOST", 2)
    turns = Slow()
    turns.go_on.set()
    writer = Words(turns)
    for key in ("a", "b", "c", "c", "a"):
        await writer.write("s", key, HI)
    assert [key for _, key, _ in turns.all] == ["a", "b", "c", "a"]
