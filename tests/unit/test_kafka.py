"""Connection settings of clients: their translation to arguments, contradictions, and values that are never shown."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from types import SimpleNamespace

import pytest
from aiohttp import web
from click.testing import CliRunner
from msgspec import structs

from reknit.pipeline.cli import main
from reknit.pipeline.config import ConfigError, load_config
from reknit.pipeline.errors import BrokerDownError, InputError
from reknit.pipeline.kafka import KafkaSettings, connection, why_down
from reknit.pipeline.settings import Config

MARK = "hunter2-planted"


def given(**settings):
    found = connection(SimpleNamespace(bootstrap_servers="a:1", kafka=KafkaSettings(**settings)))
    assert (found.pop("bootstrap_servers"), found.pop("client_id")) == ("a:1", "reknit")
    return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_names_and_passwords(mechanism, tmp_path):
    (tmp_path / "password").write_text(MARK + "\n")
    wanted = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "u",
        "sasl_plain_password": MARK,
    }
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": "u"}
    assert given(**settings, sasl_password=MARK) == wanted
    assert given(**settings, sasl_password_file=str(tmp_path / "password")) == wanted


def test_certificates(certificate):
    assert given() == {"security_protocol": "PLAINTEXT"}
    files = {"ssl_certfile": str(certificate / "cert.pem"), "ssl_keyfile": str(certificate / "key.pem")}
    found = given(security_protocol="SSL", ssl_cafile=str(certificate / "cert.pem"), **files)
    context = found.pop("ssl_context")
    assert found == {"security_protocol": "SSL"}
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert [dict(pair for (pair,) in one["subject"]) for one in context.get_ca_certs()] == [{"commonName": "localhost"}]
    assert given(security_protocol="SSL", ssl_check_hostname=False)["ssl_context"].check_hostname is False


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"sasl_mechanism": "PLAIN"}, "security_protocol"),
        ({"ssl_cafile": "/ca.pem"}, "security_protocol"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u"}, "sasl_username"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_password": MARK}, "sasl_username"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}, "sasl_mechanism"),
        ({"security_protocol": "SSL", "ssl_cafile": "/nowhere.pem"}, "ssl_cafile"),
        ({"security_protocol": "SSL", "ssl_certfile": "/nowhere.pem"}, "ssl_certfile"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_password_file": "/nowhere"},
            "sasl_password_file",
        ),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_file": "/nowhere",
            },
            "sasl_oauth_token_file",
        ),
    ],
)
def test_contradicting_settings_and_missing_files(settings, path):
    with pytest.raises(InputError) as caught:
        given(**settings)
    assert caught.value.path == f"kafka.{path}"
    assert MARK not in str(caught.value)


OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


async def test_a_token_file_is_read_for_each_connection(tmp_path):
    file = tmp_path / "token"
    file.write_text("one\n")
    provider = given(**OAUTH, sasl_oauth_token_file=str(file))["sasl_oauth_token_provider"]
    assert await provider.token() == "one"
    file.write_text("two")
    assert await provider.token() == "two"


async def test_an_endpoint_is_asked_again_once_its_token_has_aged():
    asked = []

    async def answer(request):
        asked.append((request.headers["Authorization"], dict(await request.post())))
        return web.json_response({"access_token": f"t{len(asked)}", "expires_in": 3600 if len(asked) > 1 else 0})

    app = web.Application()
    app.router.add_post("/token", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        endpoint = {
            "sasl_oauth_token_endpoint": f"http://127.0.0.1:{port}/token",
            "sasl_oauth_client_id": "me",
            "sasl_oauth_client_secret": MARK,
        }
        provider = given(**OAUTH, **endpoint, sasl_oauth_scope="kafka")["sasl_oauth_token_provider"]
        assert [await provider.token() for _ in range(3)] == ["t1", "t2", "t2"]
        assert [form for _, form in asked] == [{"grant_type": "client_credentials", "scope": "kafka"}] * 2
    finally:
        await runner.cleanup()
    gone = given(**OAUTH, **endpoint)["sasl_oauth_token_provider"]
    with pytest.raises(OSError, match="gives no token") as caught:
        await gone.token()
    assert MARK not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "no Kafka broker answers at 127.0.0.1:"),
        ({"security_protocol": "SSL"}, "and does it speak SSL?"),
    ],
)
async def test_a_closed_port_is_a_transient_error(settings, said):
    port = (probe := await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)).sockets[0].getsockname()[1]
    probe.close()
    cluster = SimpleNamespace(bootstrap_servers=f"127.0.0.1:{port}", kafka=KafkaSettings(**settings))
    error = await why_down(cluster)
    assert isinstance(error, BrokerDownError)
    assert said in error.message


async def test_an_untrusted_certificate_is_named(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = KafkaSettings(security_protocol="SSL")
        error = await why_down(SimpleNamespace(bootstrap_servers=f"127.0.0.1:{port}", kafka=settings))
    assert error.code == "not_trusted"
    assert f"the certificate of 127.0.0.1:{port} is not trusted" in error.message


def test_kafka_settings_have_customary_environment_names():
    env = {
        "REKNIT_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "REKNIT_KAFKA__SASL_USERNAME": "u",
        "REKNIT_KAFKA_SASL_PASSWORD": "12345",
        "REKNIT_KAFKA_SASL_PASSWORD_FILE": "/run/secret",
    }
    read = load_config(env=env).kafka
    assert (read.security_protocol, read.sasl_username, read.sasl_password) == ("SASL_SSL", "u", "12345")
    assert read.sasl_password_file == "/run/secret"  # noqa: S105  a path


@pytest.mark.parametrize("options", [{}, {"kafka.sasl_password": MARK}], ids=["file", "option"])
def test_a_secret_in_the_options_or_the_shared_file_is_rejected(options, tmp_path):
    file = tmp_path / "reknit.toml"
    file.write_text("" if options else f'[kafka]\nsasl_password = "{MARK}"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(file, {}, options)
    assert (caught.value.code, caught.value.path) == ("config_secret", "kafka.sasl_password")
    assert "set REKNIT_KAFKA_SASL_PASSWORD, or name a file in kafka.sasl_password_file" in caught.value.message
    assert MARK not in str(caught.value)


def test_config_show_names_every_value_with_its_source_and_hides_secrets(tmp_path):
    file = tmp_path / "reknit.toml"
    file.write_text('partitions = 3\n[kafka]\nsasl_username = "u"\n[session.params]\ntop_k = 5\n')
    env = {
        "REKNIT_KAFKA_SASL_PASSWORD": MARK,
        "REKNIT_PARTITIONS": "4",
        "REKNIT_SESSION__PARAMS__TOP_P": "0.5",
        "REKNIT_KAFKA_SSL_PASSWORD": "",
    }
    done = CliRunner().invoke(main, ["config", "show", "--config", str(file), "--prefix", "p."], env=env)
    assert done.exit_code == 0
    assert MARK not in done.output
    shown = {row["key"]: (row["value"], row["source"]) for row in map(json.loads, done.stdout.splitlines())}
    assert shown["prefix"] == ("p.", "option prefix")
    assert shown["partitions"] == (4, "variable REKNIT_PARTITIONS")
    assert shown["kafka.sasl_username"] == ("u", f"file {file}")
    assert shown["kafka.sasl_password"] == ("(hidden)", "variable REKNIT_KAFKA_SASL_PASSWORD")
    assert shown["kafka.ssl_password"] == (None, "default")
    assert shown["session.params"] == (
        {"top_k": 5, "top_p": 0.5},
        f"file {file}, variable REKNIT_SESSION__PARAMS__TOP_P",
    )
    assert {name.partition(".")[0] for name in shown} == {field.name for field in structs.fields(Config)}


_OFF = [
    "sliced release",
    "endpoints",
    "late results",
    "limits of media",
    "cuts of histories",
    "prefix-bound reasoning",
    "healing",
]


@pytest.mark.parametrize(("state_format", "off"), [("1", _OFF), ("2", _OFF), ("3", [])])
def test_config_show_names_features_that_a_state_format_disables(state_format, off):
    done = CliRunner().invoke(main, ["config", "show"], env={"REKNIT_STATE__FORMAT": state_format})
    shown = {row.pop("key"): row for row in map(json.loads, done.stdout.splitlines())}
    expected = {"value": int(state_format), "source": "variable REKNIT_STATE__FORMAT"}
    assert shown.pop("state.format") == expected | ({"off": off} if off else {})
    assert [key for key, row in shown.items() if "off" in row] == []


def test_a_logged_struct_shows_no_secret():
    settings = KafkaSettings(sasl_password=MARK, sasl_oauth_client_secret=MARK, ssl_password=MARK, sasl_username="u")
    assert MARK not in repr(Config(kafka=settings))
    assert "sasl_username='u'" in repr(settings)


def test_config_show_hides_credentials_in_all_urls(tmp_path):
    file = tmp_path / "reknit.toml"
    file.write_text(
        f"""
        bootstrap_servers = "me:{MARK}@one:9092,two:9092"
        [objects]
        url = "s3://key:{MARK}@bucket/folder?token={MARK}"
        [kafka]
        sasl_oauth_token_endpoint = "https://me:{MARK}@login.example.org/token?key={MARK}#{MARK}"
        [session]
        system = "Ask https://me:{MARK}@wiki.example.org/ first."
        tools = [{{ type = "mcp", server_url = "https://h/?key={MARK}", authorization = "{MARK}" }}]
        [session.params]
        mcp_servers = [{{ url = "https://me:{MARK}@h/", authorization_token = "{MARK}" }}]
        """
    )
    done = CliRunner().invoke(main, ["config", "show", "--config", str(file)])
    assert done.exit_code == 0
    assert MARK not in done.output
    shown = {row["key"]: row["value"] for row in map(json.loads, done.stdout.splitlines())}
    assert shown["bootstrap_servers"] == "(hidden)@one:9092,two:9092"
    assert shown["objects.url"] == "s3://(hidden)@bucket/folder?token=(hidden)"
    endpoint = "https://(hidden)@login.example.org/token?key=(hidden)#(hidden)"
    assert shown["kafka.sasl_oauth_token_endpoint"] == endpoint
    assert shown["session.system"] == "Ask https://(hidden)@wiki.example.org/ first."
    assert shown["session.tools"] == [
        {"type": "mcp", "server_url": "https://h/?key=(hidden)", "authorization": "(hidden)"}
    ]
    assert shown["session.params"] == {
        "mcp_servers": [{"url": "https://(hidden)@h/", "authorization_token": "(hidden)"}]
    }


async def test_a_redirecting_endpoint_gets_no_credentials_for_another_host():
    followed = []

    async def elsewhere(request):
        followed.append(request.headers)
        return web.json_response({"access_token": "t"})

    async def redirect(_request):
        return web.Response(status=302, headers={"location": f"http://127.0.0.1:{ports[0]}/token?{MARK}"})

    runners, ports = [], []
    for handler in (elsewhere, redirect):
        app = web.Application()
        app.router.add_route("*", "/token", handler)
        runners.append(runner := web.AppRunner(app))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
    client = {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": MARK}
    endpoint = f"http://127.0.0.1:{ports[1]}/token?{MARK}"
    provider = given(**OAUTH, **client, sasl_oauth_token_endpoint=endpoint)["sasl_oauth_token_provider"]
    try:
        with pytest.raises(OSError, match="gives no token") as caught:
            await provider.token()
    finally:
        for runner in runners:
            await runner.cleanup()
    host = f"127.0.0.1:{ports[0]}"
    shown = f"http://127.0.0.1:{ports[1]}/token?(hidden)"
    assert str(caught.value) == f"{shown} gives no token (redirect to {host}, which is not followed)"
    assert followed == []
