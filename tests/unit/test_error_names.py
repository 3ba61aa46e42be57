"""A log line names the class, the number and the causes of an error, and quotes none of its text."""

from __future__ import annotations

import ast
import asyncio
import errno
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka.errors import (
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFenced,
    RebalanceInProgressError,
    UnknownError,
    UnknownTopicOrPartitionError,
)

from reknit.pipeline.engine.runtime import PartitionLostError, where
from reknit.pipeline.errors import InputError, error_name
from reknit.pipeline.kafka import explained
from reknit.pipeline.settings import Config

CONTENT = "secret content"


def caused(error, *causes):
    """Chain an error to its causes, each raised from the next."""
    for one, cause in zip((error, *causes), causes, strict=False):
        one.__cause__ = cause
    return error


def tls(reason):
    error = ssl.SSLError(1, CONTENT)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError(CONTENT), "ValueError"),
        (UnknownTopicOrPartitionError(CONTENT), "UnknownTopicOrPartitionError[3]"),
        (caused(KafkaError(CONTENT), UnknownError(CONTENT)), "KafkaError from UnknownError[-1]"),
        (
            caused(CommitFailedError(CONTENT), RebalanceInProgressError(CONTENT)),
            "CommitFailedError from RebalanceInProgressError[27]",
        ),
        (ConnectionRefusedError(errno.ECONNREFUSED, CONTENT), "ConnectionRefusedError[ECONNREFUSED]"),
        (ConnectionError(CONTENT), "ConnectionError"),
        (caused(TimeoutError(CONTENT), asyncio.CancelledError()), "TimeoutError"),
        (ssl.SSLError(1, CONTENT), "SSLError[1]"),
        (
            caused(PartitionLostError("fenced", CONTENT), ProducerFenced()),
            "PartitionLostError[fenced] from ProducerFenced",
        ),
        (tls("CERTIFICATE_VERIFY_FAILED"), "SSLError[CERTIFICATE_VERIFY_FAILED]"),
        (socket.gaierror(socket.EAI_NONAME, CONTENT), f"gaierror[{socket.EAI_NONAME}]"),
        (InputError("not_json", CONTENT), "InputError[not_json]"),
    ],
)
def test_an_error_is_named_with_its_number_and_its_causes(error, name):
    assert error_name(error) == name


def test_a_cycle_of_causes_is_cut():
    error = ValueError(CONTENT)
    error.__cause__ = KeyError(CONTENT)
    error.__cause__.__cause__ = error
    assert error_name(error) == "ValueError from KeyError from ValueError from KeyError"


def test_a_log_line_names_the_error_and_its_place():
    try:
        raise caused(KafkaError(CONTENT), UnknownError(CONTENT))
    except KafkaError as error:
        said = where(error)
    assert said.startswith("KafkaError from UnknownError[-1] at ")
    assert CONTENT not in said


LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
MODULES = [path for folder in ("pipeline", "reknit", "topics") for path in Path(folder).rglob("*.py")]


def lines_without_the_error(tree):
    """Return logger calls in ``except`` blocks that leave out the error. A timeout has no further details to log."""
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)):
        if ast.unparse(handler.type or ast.Constant("all")) == "TimeoutError":
            continue
        for call in (node for node in ast.walk(handler) if isinstance(node, ast.Call)):
            if not (isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS):
                continue
            if "log" in ast.unparse(call.func.value) and handler.name not in names_in(call):
                yield call.lineno


def names_in(call):
    return {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}


def test_every_log_line_in_an_except_block_names_the_error():
    found = [(str(path), line) for path in MODULES for line in lines_without_the_error(ast.parse(path.read_text()))]
    assert (found, len(MODULES) > 100) == ([], True)


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        ("except OSError as error:\n  log.warning('no: %s', error_name(error))", []),
        ("except OSError as error:\n  log.warning('no')", [4]),
        ("except (KafkaError, TimeoutError):\n  self._log.info('no')", [4]),
        ("except TimeoutError:\n  log.info('not in %d s', 5)", []),
    ],
)
def test_a_line_without_its_error_is_found(block, lines):
    assert list(lines_without_the_error(ast.parse(f"try:\n  pass\n{block}"))) == lines


async def test_a_broker_that_answers_only_a_retry_has_the_first_error_named(monkeypatch):
    async def answers(*_, **__):
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr("reknit.pipeline.kafka.create_conn", answers)
    error = await explained(Config(bootstrap_servers="127.0.0.1:1"), KafkaTimeoutError(CONTENT))
    assert (error.code, "(KafkaTimeoutError)" in error.message, CONTENT in error.message) == (
        "broker_unreachable",
        True,
        False,
    )
