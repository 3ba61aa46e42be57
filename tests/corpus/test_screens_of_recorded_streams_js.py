"""Recorded streams in unmodified UI clients whose connections break off: the view, with each item once."""

import os

import pytest
from real_screens import Shown, after_breaks, first_visible, needs_clients
from recorded import needs_corpus
from screen_clients import shown_by_ag_ui, shown_by_ai_sdk, wanted
from test_screens_of_recorded_streams import APIS, PROGRAMS, recordings

from reknit.topics.items import TurnStop

pytestmark = [*needs_corpus, needs_clients]

# Recordings of one file in a plain run, since each client is a process; with the variable set, all of them.
MOST = 10**9 if os.environ.get("REKNIT_ALL_CUTS") else 2
# Connections that break off while a stream is shown.
BREAKS = 6


def whole(name):
    """Return recordings that end: a client waits for the rest of the others."""
    found = (each for each in recordings(name) if first_visible(each) and isinstance(each[-1], TurnStop))
    return [each for each in found if sum(isinstance(item, TurnStop) for item in each) == 1][:MOST]


def places(items):
    begin = first_visible(items)
    return set(range(begin, len(items), max(1, (len(items) - begin) // BREAKS)))


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [*APIS, *PROGRAMS])
async def test_ag_ui(tmp_path, name):
    for index, items in enumerate(whole(name)):
        found = await after_breaks(tmp_path / str(index), "ag-ui", items, places(items))
        assert found["end"] in {"finished", "error"}
        assert shown_by_ag_ui(Shown(found["messages"])) == wanted(items)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [*APIS, *PROGRAMS])
async def test_ai_sdk(tmp_path, name):
    for index, items in enumerate(whole(name)):
        found = await after_breaks(tmp_path / str(index), "ai-sdk", items, places(items))
        assert found.get("error") is None
        # Texts of failed results are never empty.
        expected = [(key, kind, text or ("error" if kind == "error" else "")) for key, kind, text in wanted(items)]
        assert sorted(shown_by_ai_sdk(found["messages"][-1], items)) == sorted(expected)


def test_most_recordings_are_shown():
    assert sum(bool(whole(name)) for name in (*APIS, *PROGRAMS)) >= 7
