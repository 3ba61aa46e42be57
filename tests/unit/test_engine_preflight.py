"""The checks before a worker joins the group, while no broker answers."""

from types import SimpleNamespace

import pytest
from aiokafka.errors import KafkaConnectionError, UnknownTopicOrPartitionError

from reknit.pipeline.engine import preflight
from reknit.pipeline.engine.client_requests import TopicsRequest
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, StartupError, Tuning
from reknit.pipeline.errors import BrokerDownError
from reknit.pipeline.settings import Config

# No server listens on port 1.
CONFIG = Config(bootstrap_servers="127.0.0.1:1", prefix="p.", delivery="at-least-once")


class Cluster:
    """A cluster without topics that answers after a number of attempts to connect; it is its own client."""

    def __init__(self, attempts):
        self.attempts = attempts

    def __call__(self, **_):
        return self

    async def bootstrap(self):
        self.attempts -= 1
        if self.attempts >= 0:
            raise KafkaConnectionError("no broker answers")

    async def send(self, _node, request):
        answer = {"groups": [{"error_code": 0}]}
        if isinstance(request, TopicsRequest):
            missing = {"error_code": UnknownTopicOrPartitionError.errno, "partitions": []}
            answer = {"cluster_id": "c", "topics": [{"topic": "p.in.v1", **missing}]}
        return SimpleNamespace(to_object=lambda: answer)

    def get_random_node(self):
        return 0

    async def coordinator_lookup(self, _kind, _key):
        return 0

    async def ready(self, _node):
        return True

    async def close(self):
        pass


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks a cluster which answers after a number of attempts to connect."""

    async def check(*, attempts, wait_seconds):
        monkeypatch.setattr(preflight, "AIOKafkaClient", Cluster(attempts))
        monkeypatch.setattr(preflight, "_LOOK_AGAIN_SECONDS", 0.001)
        runtime = Runtime(CONFIG, {}, NoMetrics(), Tuning(wait_seconds=wait_seconds))
        await preflight.check(runtime, {"p.in.v1"}, set())

    return check


async def test_a_start_waits_for_a_broker(check):
    with pytest.raises(StartupError) as error:
        await check(attempts=3, wait_seconds=60.0)
    assert error.value.code == "topics_missing"


async def test_a_start_that_does_not_wait_reports_that_no_broker_answers(check):
    with pytest.raises(BrokerDownError):
        await check(attempts=3, wait_seconds=0.0)
