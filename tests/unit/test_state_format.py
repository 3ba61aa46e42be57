"""The state format that is stored with the next source offset."""

from types import SimpleNamespace

import pytest

from reknit.pipeline.engine import seams
from reknit.pipeline.engine import state as module
from reknit.pipeline.engine.runtime import EngineError
from reknit.pipeline.stages.base import POSITION, position_value, read_position


class Reader:
    """A changelog of these values under the position's key."""

    def __init__(self, **_):
        self.values, self.at = [b"3", b"5 4"], 0

    async def start(self): ...

    async def stop(self): ...

    def assign(self, _places): ...

    def seek(self, _place, offset):
        self.at = offset

    async def end_offsets(self, places):
        return dict.fromkeys(places, len(self.values))

    async def beginning_offsets(self, places):
        return dict.fromkeys(places, 0)

    async def position(self, _place):
        return self.at

    async def getmany(self, place, **_):
        found = [SimpleNamespace(key=POSITION, value=value, headers=()) for value in self.values[self.at :]]
        self.at = len(self.values)
        return {place: found}


@pytest.mark.parametrize(("position", "state_format", "value"), [(7, 1, b"7"), (7, 2, b"7 2"), (7, 3, b"7 3")])
def test_format_1_is_readable_by_builds_that_know_no_other(position, state_format, value):
    assert position_value(position, state_format) == value
    assert read_position(value) == (position, state_format)


async def test_state_of_a_newer_format_is_rejected_in_a_sentence(monkeypatch):
    monkeypatch.setattr(seams, "AIOKafkaConsumer", Reader)
    with pytest.raises(EngineError) as error:
        await module.restore({}, "state.v1", 0, lambda _key, _value: None, committed_only=True)
    assert error.value.code == "state_newer"
    assert (
        "holds state of format 4, which a newer version of Reknit wrote; this one reads up to 3" in error.value.message
    )
