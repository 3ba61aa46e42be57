"""The worker's log line for each dead letter."""

import logging

from reknit.pipeline.engine.batches import log_letters
from reknit.pipeline.stages.base import Output
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS


def letter(key, **why):
    why = {"topic": "agent.turns.v1", "partition": "3", "offset": "17", **why}
    headers = tuple((f"reknit.error.{name}", text.encode()) for name, text in why.items())
    return Output(DEAD_LETTERS, key, b"secret words", headers)


def test_a_rejection_is_logged_with_session_rule_and_message_and_others_with_their_code(caplog):
    with caplog.at_level(logging.WARNING, logger="reknit.dead-letters"):
        log_letters(
            [
                letter(b"docs-1", code="rejected", rule="ANT-05", message="model: Field required"),
                letter(b"docs-2", code="rejected", rule="ANT-05"),
                letter(b"\xff\n", code="not_json", message="secret words"),
                letter(None, code="no_key"),
                Output(PROVIDER_REQUESTS, b"docs-1", b"{}", ()),
            ]
        )
    place = "agent.turns.v1 partition 3 offset 17 became a dead letter:"
    assert [record.getMessage() for record in caplog.records] == [
        f"session 'docs-1': {place} rejected ANT-05: model: Field required",
        f"session 'docs-2': {place} rejected ANT-05: ",
        f"{place} not_json",
        f"{place} no_key",
    ]


def test_long_session_ids_and_messages_are_cut(caplog):
    with caplog.at_level(logging.WARNING, logger="reknit.dead-letters"):
        log_letters([letter(b"s" * 5000, code="rejected", rule="ANT-05", message="m" * 5000)])
    (line,) = (record.getMessage() for record in caplog.records)
    assert (line.count("s" * 300), line.count("m" * 300), len(line) < 800) == (1, 1, True)
