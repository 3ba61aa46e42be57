"""A worker's log: one line per event, repeats counted, as JSON if configured."""

import io
import json
import logging
import subprocess
import sys

import pytest

from reknit.pipeline.cli import CalmHandler


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def log_window():
    """Yield a function that logs, the clock, and a function that returns the written lines."""
    clock, stream = Clock(), io.StringIO()
    handler = CalmHandler(stream, clock)

    def log(name, message, *values, **more):
        handler.handle(
            logging.getLogger(name).makeRecord(name, 40, "", 0, message, values, **{"exc_info": None} | more)
        )

    yield log, clock, lambda: stream.getvalue().splitlines()
    handler.close()


def test_a_clients_line_is_logged_once_in_ten_seconds_with_a_count(log_window):
    log, clock, lines = log_window
    for n in range(400):
        log("aiokafka.conn", "no node %d", n)
        clock.now += 0.02
    assert lines() == ["no node 0"]
    clock.now += 3
    log("aiokafka.conn", "no node %d", 400)
    assert lines() == ["no node 0", "no node 399 (and 398 more like this)"]
    clock.now += 10
    log("reknit.worker", "something else")
    clock.now += 10
    log("aiokafka.conn", "no node %d", 401)
    assert lines()[2:] == ["no node 400", "something else", "no node 401"]


@pytest.mark.parametrize(
    ("name", "shown"), [("reknit.engine", 5), ("reknit.dead-letters", 3), ("reknit.worker", 50), ("aiokafkaish", 50)]
)
def test_rate_limits_by_logger(log_window, name, shown):
    log, _, lines = log_window
    for n in range(50):
        log(name, "one %d", n)
    assert lines() == [f"one {n}" for n in range(shown)]


def test_a_different_wording_is_logged_and_a_clients_traceback_is_not(log_window):
    log, _, lines = log_window
    log("faust.worker", "crashed", exc_info=(ValueError, ValueError("content"), None))
    log("mode", "crashed")
    log("faust.worker", "stopped")
    assert lines() == ["crashed: ValueError", "crashed", "stopped"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--bootstrap-servers", "127.0.0.1:1"], 75, "no Kafka broker answers at 127.0.0.1:1"),
        (["--bootstrap-servers", "nonsense"], 2, "option bootstrap_servers"),
    ],
)
def test_an_error_at_the_start_is_json_too(options, code, said, tmp_path):
    command = [sys.executable, "-m", "reknit", "worker", "--state-dir", str(tmp_path), *options]
    env = {"REKNIT_LOG_FORMAT": "json", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == code
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert said in lines[-1]["event"]
    assert len(lines) <= 2
