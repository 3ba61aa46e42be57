"""Brokers for tests: a real Apache Kafka from Maven's jars, and the embedded one."""

import logging
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # importlib mode: harness and toy stage are modules in this folder

from chaos.cluster import kafka_broker  # noqa: E402  on the path now


@pytest.fixture(scope="session", autouse=True)
def _quiet_clients():
    # Clients report every refused connection while a broker restarts; the tests look at outcomes.
    for name in ("aiokafka", "faust", "mode", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


_IS_REQUIRED = os.environ.get("REKNIT_REQUIRE_KAFKA") == "1"


@pytest.fixture(scope="session")
def broker_is_required():
    """Whether what is missing for a test fails it, as in CI."""
    return _IS_REQUIRED


def _need_kafka():
    wrong = kafka_broker.missing_tools()
    if wrong is None:
        try:
            kafka_broker.fetch_jars()
        except kafka_broker.BrokerError as error:
            wrong = str(error)
    if wrong is None:
        return
    if _IS_REQUIRED:
        pytest.fail(f"REKNIT_REQUIRE_KAFKA is set, but: {wrong}")
    pytest.skip(f"no real Kafka: {wrong}")


@pytest.fixture(scope="session")
def kafka_is_there():
    """Skips where no real Apache Kafka can be started, or fails where one is required."""
    _need_kafka()


@pytest.fixture(scope="session")
def broker(tmp_path_factory, kafka_is_there):
    """A real Apache Kafka for the whole run."""
    # The cleaner looks for segments to compact as often as tests of compaction wait for it; by default every 15 s.
    server = kafka_broker.Broker(tmp_path_factory.mktemp("kafka"), heap="768m", log_cleaner_backoff_ms="500")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def own_broker(tmp_path, kafka_is_there):
    """A real Apache Kafka for one test, to be stopped and started at will."""
    # After a kill -9 the controller must notice the old incarnation's end before it lets the new one in.
    server = kafka_broker.Broker(tmp_path / "kafka", broker_session_timeout_ms="3000")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def build_at(tmp_path):
    """Return what unpacks the sources of a commit and returns their directory."""

    def unpack(commit):
        packed = subprocess.run(["git", "-C", HERE.parents[1], "archive", commit], check=False, capture_output=True)
        if packed.returncode:
            pytest.skip(f"this clone does not hold {commit}")
        directory = tmp_path / commit
        directory.mkdir()
        subprocess.run(["tar", "-x", "-C", directory], input=packed.stdout, check=True)
        return directory

    return unpack


@pytest.fixture
def free_port():
    return kafka_broker.free_port


@pytest.fixture
def prefix():
    """A pipeline of its own on the shared broker."""
    return f"t{uuid.uuid4().hex[:8]}."
