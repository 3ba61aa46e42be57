"""A broker with TLS, passwords and an authorizer: the pipeline runs with the rights that are printed, and no others."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys

import harness
import msgspec
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest
from chaos.cluster import kafka_broker

from reknit.pipeline.client import Turns
from reknit.pipeline.config import load_config
from reknit.pipeline.errors import BrokerError
from reknit.pipeline.kafka import KafkaSettings, connection
from reknit.pipeline.replay import Plan
from reknit.pipeline.screen_server.server import SERVED
from reknit.pipeline.viewer.index.reading import Follower, open_index
from reknit.pipeline.viewer.progress import Progress
from reknit.pipeline.viewer.watch import Watch
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_REQUESTS, REPLAY_PLAN
from reknit.topics.cluster import roles

pytestmark = pytest.mark.broker

PASSWORD = "planted-secret"  # noqa: S105  of users of a broker on this machine, for a minute
RESOURCES = {"--topic": 2, "--group": 3, "--transactional-id": 5}
PATTERNS = {"literal": 3, "prefixed": 4}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
PREFIX = "s."
ROLES = {role.user.removeprefix("s-reknit-"): role for role in roles(PREFIX)}
WORKER, PRODUCER, CONSUMER = "s-reknit-worker", "s-reknit-producer-agent-turns", "s-reknit-consumer-provider-requests"


@pytest.fixture(scope="module")
def secured(tmp_path_factory, kafka_is_there):
    """A broker whose clients come over TLS with a name and a password; who comes from inside may do everything."""
    folder = tmp_path_factory.mktemp("secured")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "server.pem").write_text((folder / "key.pem").read_text() + (folder / "ca.pem").read_text())
    (folder / "password").write_text(f"{PASSWORD}\n")
    broker = kafka_broker.Broker(folder)
    broker.inside = f"127.0.0.1:{kafka_broker.free_port()}"
    places = f"SASL_SSL://{broker.bootstrap},INSIDE://{broker.inside}"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    broker.settings |= {
        "listeners": f"{places},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": places,
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    for user in ("admin", *(role.user for role in ROLES.values())):
        for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
            broker.format_options += ["--add-scram", f"{mechanism}=[name={user},password={PASSWORD}]"]
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def login(secured, monkeypatch):
    """Return the settings that authenticate every command and client of Reknit."""

    def become(user, mechanism="SCRAM-SHA-512"):
        settings = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "ssl_cafile": str(secured.directory / "ca.pem"),
            "sasl_username": user,
            "sasl_password_file": str(secured.directory / "password"),
        }
        for name, value in settings.items():
            monkeypatch.setenv(f"REKNIT_KAFKA_{name.upper()}", value)
        config = type("Place", (), {"bootstrap_servers": secured.bootstrap, "kafka": KafkaSettings(**settings)})
        return connection(config)

    return become


def reknit(*arguments, text=None):
    command = [sys.executable, "-m", "reknit", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ), input=text
    )


def printed(secured):
    """Every right that is printed: user, operation, and the resource as Kafka's protocol names it."""
    done = reknit("topics", "acls", "--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX)
    assert done.returncode == 0
    for line in done.stdout.splitlines():
        words = shlex.split(line)
        assert words[:4] == ["kafka-acls.sh", "--bootstrap-server", secured.bootstrap, "--add"]
        options = list(zip(words[4::2], words[5::2], strict=True))
        said = dict(options)
        kind = next(name for name in RESOURCES if name in said)
        for name, value in options:
            if name == "--operation":
                yield said["--allow-principal"], value, (RESOURCES[kind], said[kind]), said["--resource-pattern-type"]


async def change(secured, request, rights):
    client = AIOKafkaClient(bootstrap_servers=secured.inside)
    await client.bootstrap()
    try:
        for user, operation, resource, pattern in rights:
            acl = request(*resource, PATTERNS[pattern], user, "*", OPERATIONS[operation], 3)
            answer = await client.send(client.get_random_node(), acl)
            assert "error_code=0" in str(answer) or "(0," in str(answer), answer
    finally:
        await client.close()


def worker_command(secured, tmp_path, port=0):
    place = ["--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX]
    return ["worker", *place, "--metrics-port", str(port), "--state-dir", str(tmp_path / "state")]


async def test_the_pipeline_runs_with_the_printed_rights_and_names_each_that_is_missing(
    secured, login, tmp_path, free_port, monkeypatch
):
    monkeypatch.setenv("REKNIT_SESSION__MODEL", "claude-sonnet-4-5")
    monkeypatch.setenv("REKNIT_SESSION__MAX_TOKENS", "1024")
    login("admin", "SCRAM-SHA-256")
    place = ["--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX, "--partitions", str(lab.PARTITIONS)]
    done = await asyncio.to_thread(reknit, "topics", "apply", *place)
    assert done.returncode == 0, done.stderr
    login(WORKER)
    refused = await asyncio.to_thread(reknit, *worker_command(secured, tmp_path))
    assert refused.returncode == 2
    rights = list(printed(secured))
    assert {user for user, *_ in rights} == {f"User:{role.user}" for role in ROLES.values()}
    await change(secured, CreateAclsRequest, rights)

    port = free_port()
    command = [sys.executable, "-m", "reknit", *worker_command(secured, tmp_path, port)]
    worker = harness.WorkerProcess("worker", command, tmp_path / "worker.log", port).start()
    try:
        await worker.ready(60)
        login(PRODUCER)
        message = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
        turn, appended = json.dumps(message), json.dumps({"type": "turn.appended", "message": message})
        done = await asyncio.to_thread(reknit, "ingest", "turns", "--session", "one", *place[:4], text=f"{turn}\n")
        assert done.returncode == 0, done.stderr
        producer = AIOKafkaProducer(**login(PRODUCER), enable_idempotence=True)
        await producer.start()
        await producer.send_and_wait(PREFIX + AGENT_TURNS, key=b"two", value=appended.encode())
        await producer.stop()
        consumer = AIOKafkaConsumer(
            PREFIX + PROVIDER_REQUESTS,
            **login(CONSUMER),
            group_id=f"{CONSUMER}-1",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            found = {(await asyncio.wait_for(consumer.getone(), 40)).key for _ in range(2)}
        except TimeoutError:
            raise AssertionError(worker.tail()) from None
        finally:
            await consumer.stop()
        assert found == {b"one", b"two"}
        # Taken away while it runs, a right is missed at the next commit or heartbeat.
        write = next(
            right for right in rights if right[:2] == (f"User:{WORKER}", "Write") and "requests" in right[2][1]
        )
        await change(secured, DeleteAclsRequest, [write])
        login(PRODUCER)
        await asyncio.to_thread(reknit, "ingest", "turns", "--session", "one", *place[:4], text=f"{turn}\n")
        assert await worker.wait(60) == 2, worker.tail()
        # The broker says which right is missing to a producer that writes, and not to one that asks for metadata first.
        refused = rf"the brokers refuse (Write|a right) on topic {re.escape(PREFIX + PROVIDER_REQUESTS)}"
        assert re.search(refused, worker.tail()), worker.tail()
        assert "Traceback" not in worker.log.read_text()
        assert PASSWORD not in worker.log.read_text()
        await change(secured, CreateAclsRequest, [write])
    finally:
        worker.end()

    login(WORKER)
    kinds = {2: "topic", 3: "group", 5: "transactional ids that begin with"}
    for right in [right for right in rights if right[0] == f"User:{WORKER}"]:
        await change(secured, DeleteAclsRequest, [right])
        done = await asyncio.to_thread(reknit, *worker_command(secured, tmp_path))
        await change(secured, CreateAclsRequest, [right])
        _, operation, (kind, name), _ = right
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 2, done.stderr
        assert last.startswith(f"reknit: missing rights: {operation} on {kinds[kind]} {name}. "), done.stderr


async def use(role, settings):
    """Do what the role is for, once: send a record to its topic, or read one from it."""
    topic = next(right for right in role.rights if right.kind == "topic")
    writes = "Write" in topic.operations
    if writes:
        client = AIOKafkaProducer(**settings, enable_idempotence=True)
    else:
        group = {"group_id": f"{role.user}-1", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        client = AIOKafkaConsumer(topic.name, **settings, **group)
    try:
        await client.start()
        await asyncio.wait_for(client.send_and_wait(topic.name, key=b"k") if writes else client.getone(), 30)
    finally:
        await client.stop()


# Without Write on any topic a client cannot be an idempotent producer, which Kafka calls a right on the cluster.
REFUSED = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


@pytest.mark.parametrize("name", [name for name in ROLES if name.startswith(("producer", "consumer"))])
async def test_producers_and_consumers_need_the_printed_rights_and_no_others(secured, login, name):
    role = ROLES[name]
    login("admin")
    place = ["--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX, "--partitions", str(lab.PARTITIONS)]
    done = await asyncio.to_thread(reknit, "topics", "apply", *place)
    assert done.returncode == 0, done.stderr
    async with AIOKafkaProducer(bootstrap_servers=secured.inside) as producer:
        await producer.send_and_wait(role.rights[0].name, key=b"k", value=b"{}")
    rights = [right for right in printed(secured) if right[0] == f"User:{role.user}"]
    await change(secured, CreateAclsRequest, rights)
    settings = login(role.user)
    await use(role, settings)
    for right in rights:
        await change(secured, DeleteAclsRequest, [right])
        with pytest.raises(REFUSED):
            await use(role, settings)
        await change(secured, CreateAclsRequest, [right])


async def test_an_operator_needs_the_printed_rights_and_no_others(secured, login):
    login("admin")
    place = ["--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX, "--partitions", str(lab.PARTITIONS)]
    done = await asyncio.to_thread(reknit, "topics", "apply", *place)
    assert done.returncode == 0, done.stderr
    why = {"code": "not_json", "topic": AGENT_TURNS, "partition": "0", "offset": "0", "version": "1"}
    headers = [(f"reknit.error.{name}", value.encode()) for name, value in why.items()]
    async with AIOKafkaProducer(bootstrap_servers=secured.inside) as producer:
        await producer.send_and_wait(PREFIX + AGENT_TURNS, b"{}", key=b"one", partition=0)
        # A record of a stranger's among them is no reason to stop.
        await producer.send_and_wait(PREFIX + DEAD_LETTERS, b"{}", b"one", 0, headers=[("reknit.error.code", b"\xff")])
        letters = [
            f"0/{(await producer.send_and_wait(PREFIX + DEAD_LETTERS, b'', b'one', 0, headers=headers)).offset}"
            for _ in range(3)
        ]
    operator = ROLES["operator"]
    rights = [right for right in printed(secured) if right[0] == f"User:{operator.user}"]
    await change(secured, CreateAclsRequest, rights)
    login(operator.user)

    async def typed(*words):
        text = json.dumps({"type": "request.wanted"})
        return (await asyncio.to_thread(reknit, *words, *place[:4], text=text)).returncode

    async def retried():
        return await typed("dead-letters", "retry", "--record", "-", letters.pop())

    assert [await typed("inspect", "one"), await typed("sessions", "list"), await retried()] == [0, 0, 0]
    assert await typed("forget", "one", "--timeout", "0") == 75  # no worker runs
    of_replays = [right for right in rights if right[3] == "prefixed"]
    held = [f"{PREFIX}replay.held.{name}" for name in (PROVIDER_REQUESTS, REPLAY_PLAN.name)]
    await harness.make_topics(secured.inside, held, 1)
    async with AIOKafkaProducer(bootstrap_servers=secured.inside) as producer:
        await producer.send_and_wait(held[0], b"{}", key=b"one")
        plan = Plan(id="held", version="1", created=0, source_prefix=PREFIX, partitions=1, starts={}, ends={})
        await producer.send_and_wait(held[1], msgspec.json.encode(plan), key=b"held")
    for more in ([], ["--delete-replays"]):
        told = await asyncio.to_thread(reknit, "forget", "one", "--timeout", "0", *more, *place[:4])
        assert told.stdout, told.stderr
        assert json.loads(told.stdout)["replays"] == [{"replay": "held", "deleted": bool(more), "at_work": False}]
    writes = [right for right in rights if right[1] == "Write" and right not in of_replays]
    assert len(writes) == 2
    for right in writes:
        await change(secured, DeleteAclsRequest, [right])
        assert await retried() == 2
        await change(secured, CreateAclsRequest, [right])
    for right in rights:
        if right[1] == "Read":
            await change(secured, DeleteAclsRequest, [right])
    assert await typed("sessions", "list") == 2


async def test_a_viewer_needs_the_printed_rights_and_no_others(secured, login, tmp_path):
    login("admin")
    place = ["--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX, "--partitions", str(lab.PARTITIONS)]
    done = await asyncio.to_thread(reknit, "topics", "apply", *place)
    assert done.returncode == 0, done.stderr
    viewer = ROLES["viewer"].user
    rights = [right for right in printed(secured) if right[0] == f"User:{viewer}"]
    of_topics = [right for right in rights if right[3] == "literal" and right[2][1] != f"{PREFIX}reknit"]
    (of_group,) = [right for right in rights if right[2][1] == f"{PREFIX}reknit"]
    topics = {right[2][1] for right in of_topics}
    async with AIOKafkaProducer(bootstrap_servers=secured.inside) as producer:
        for topic in topics:
            await producer.send_and_wait(topic, key=b"k", value=b"{}")
    await change(secured, CreateAclsRequest, rights)
    login(viewer)

    async def says():
        """The state that pages show; no worker runs."""
        config = load_config(overrides={"bootstrap_servers": secured.bootstrap, "prefix": PREFIX})
        index, progress = await open_index(config, tmp_path / "watched"), Progress()
        task = asyncio.create_task(Watch(config, index, progress).run())
        try:
            async with asyncio.timeout(240):
                while (found := progress.status()).words in {"not known yet", "keeps up"}:  # noqa: ASYNC110  a progress has no event
                    await asyncio.sleep(0.05)
        finally:
            task.cancel()
            await asyncio.wait([task])
            index.close()
        return found.level, found.words

    async def followed(name):
        """The topics that an index of this name has read."""
        config = load_config(overrides={"bootstrap_servers": secured.bootstrap, "prefix": PREFIX})
        index = await open_index(config, tmp_path / name)
        follower = Follower(config, index)
        task = asyncio.create_task(follower.run())
        try:
            await asyncio.wait_for(follower.caught_up.wait(), 240)
        finally:
            task.cancel()
            await asyncio.wait([task])
            index.close()
        read = {PREFIX + topic for (topic, _), offset in index.positions.items() if offset}
        assert set(follower.behind().missing) == topics - read
        return read

    assert await followed("all") == topics
    level, words = await says()
    assert (level, words.partition(":")[0]) == ("bad", "no worker")
    await change(secured, DeleteAclsRequest, [of_group])
    assert await says() == ("unknown", f"not known: no right to describe the group {PREFIX}reknit")
    await change(secured, CreateAclsRequest, [of_group])
    for number, right in enumerate(of_topics):
        await change(secured, DeleteAclsRequest, [right])
        assert await followed(f"without-{number}") == topics - {right[2][1]}
        await change(secured, CreateAclsRequest, [right])


@pytest.mark.parametrize("name", ["screens", "screens-input"])
async def test_a_server_of_screens_needs_the_printed_rights_and_no_others(secured, login, tmp_path, name):
    login("admin")
    place = ["--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX, "--partitions", str(lab.PARTITIONS)]
    done = await asyncio.to_thread(reknit, "topics", "apply", *place)
    assert done.returncode == 0, done.stderr
    user = ROLES[name].user
    rights = [right for right in printed(secured) if right[0] == f"User:{user}"]
    async with AIOKafkaProducer(bootstrap_servers=secured.inside) as producer:
        for topic in SERVED:
            await producer.send_and_wait(PREFIX + topic, key=b"k", value=b"{}")
    await change(secured, CreateAclsRequest, rights)
    login(user)
    config = load_config(overrides={"bootstrap_servers": secured.bootstrap, "prefix": PREFIX})

    async def read(file):
        """The topics that an index has read, as a server fills it."""
        index = await open_index(config, tmp_path / file)
        follower = Follower(config, index, topics=SERVED)
        tasks = [asyncio.create_task(follower.run()), asyncio.create_task(follower.caught_up.wait())]
        try:
            await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            return {PREFIX + topic for (topic, _), offset in index.positions.items() if offset}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            index.close()

    async def written():
        async with Turns(config) as turns:
            await turns.append("k", {"role": "user", "content": "Hi"}, record_id="m")

    served = {PREFIX + topic for topic in SERVED}
    assert await read("all") == served
    if name == "screens-input":
        await written()
    else:
        with pytest.raises(BrokerError):
            await written()
    for right in rights:
        if right[1] == "Read":
            await change(secured, DeleteAclsRequest, [right])
            assert right[2][1] not in await read(f"without-{right[2][1]}")
            await change(secured, CreateAclsRequest, [right])


async def test_a_replay_needs_no_more_than_the_printed_rights(secured, login, tmp_path):
    login("admin")
    place = ["--bootstrap-servers", secured.bootstrap, "--prefix", PREFIX, "--partitions", str(lab.PARTITIONS)]
    done = await asyncio.to_thread(reknit, "topics", "apply", *place)
    assert done.returncode == 0, done.stderr
    rights = [right for right in printed(secured) if right[0] == f"User:{ROLES['replay'].user}"]
    await change(secured, CreateAclsRequest, rights)
    login(ROLES["replay"].user)

    async def typed(*words):
        done = await asyncio.to_thread(reknit, words[0], *place[:4], *words[1:])
        return done.returncode, done.stderr

    work = ("--metrics-port", "0", "--state-dir", str(tmp_path))
    code, said = await typed("replay", "--id", "one", *work)
    assert code == 0, said
    code, said = await typed("diff", PREFIX, f"{PREFIX}replay.one.")
    assert code == 0, said
    for right in rights:
        if right[3] == "prefixed" and right[1] in {"Create", "Write"}:
            await change(secured, DeleteAclsRequest, [right])
            code, said = await typed("replay", "--id", "two", *work)
            assert code == 2, said
            await change(secured, CreateAclsRequest, [right])
    for name in ("one", "two"):
        done = await asyncio.to_thread(reknit, "replay", "delete", *place[:4], name)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"SASL_PASSWORD_FILE": "", "SASL_PASSWORD": "wrong"}, "do not let 's-reknit-worker' in"),
        ({"SSL_CAFILE": ""}, "is not trusted"),
        ({"SASL_MECHANISM": "PLAIN"}, "do not let 's-reknit-worker' in"),
    ],
)
@pytest.mark.parametrize("command", ["worker", "diff", "ingest"])
def test_a_refused_user_gets_a_sentence(  # noqa: PLR0917  fixtures and cases
    secured, login, tmp_path, monkeypatch, environment, said, command
):
    login(WORKER)
    for name, value in environment.items():
        monkeypatch.setenv(f"REKNIT_KAFKA_{name}", value)
    arguments = {
        "worker": worker_command(secured, tmp_path),
        "diff": ["topics", "diff", "--bootstrap-servers", secured.bootstrap],
        "ingest": ["ingest", "turns", "--session", "s", "--bootstrap-servers", secured.bootstrap],
    }[command]
    done = reknit(*arguments, text="{}\n")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stderr
    assert "wrong" not in done.stderr.splitlines()[-1]
