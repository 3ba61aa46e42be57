"""A request never changes when its session continues, and a restored session reports everything that was pending."""

from __future__ import annotations

import pytest
from build import call, result, said, session_of, user

from reknit.pipeline import Session, normalize


def rounds(count):
    """Rounds with a blank text, which is left out, and a result of a call that does not exist."""
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
def test_the_account_of_a_request_does_not_grow_with_its_session(target):
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
def test_why_the_prefix_is_another_is_said_once_also_by_a_session_that_is_read_back(kept):
    session = session_of(*rounds(4))
    session.request()
    session.rewind(12)
    assert kept or session.request().reset == "rewound"
    segments = [record for _, record in session.take_segments(flush=True)]
    resumed = Session.load(session.head(), segments)
    assert [resumed.request().reset, resumed.request().reset] == ["rewound" if kept else "", ""]
