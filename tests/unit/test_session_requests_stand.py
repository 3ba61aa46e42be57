"""A request stays unchanged when its session continues, and a reloaded session reports a pending reset."""

from __future__ import annotations

import pytest
from build import call, result, said, session_of, user

from reknit.pipeline import Session, normalize


def rounds(count):
    """Return rounds that each have a blank text, which is dropped, and a result without a call."""
    return [
        message
        for number in range(count)
        for message in (
            user(f"u{number}", ""),
            said("ok", call(f"toolu_{number}")),
            user(result(f"toolu_{number}"), result(f"toolu_none_{number}")),
            said("done"),
        )
    ]


@pytest.mark.parametrize("target", ["anthropic", "openai-chat", "gemini", "claude-cli"])
def test_the_ledger_of_a_request_does_not_grow_with_its_session(target):
    session = Session((target,))
    requests = []
    for message in rounds(8):
        session.append(message)
        requests.append(session.request())
    for count, request in enumerate(requests, 1):
        whole = normalize(rounds(8)[:count], to=target)
        assert sorted(map(str, request.ledger)) == sorted(map(str, whole.ledger))
        assert request.fixes == whole.fixes


@pytest.mark.parametrize("kept", [True, False])
def test_the_reason_for_a_new_prefix_is_reported_once_also_after_a_reload(kept):
    session = session_of(*rounds(4))
    session.request()
    session.rewind(12)
    assert kept or session.request().reset == "rewound"
    segments = [record for _, record in session.take_segments(flush=True)]
    resumed = Session.load(session.head(), segments)
    assert [resumed.request().reset, resumed.request().reset] == ["rewound" if kept else "", ""]
