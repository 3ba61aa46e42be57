"""The compose file and the image, without a Docker engine: valid, in step with the commands, closed to the outside."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from jsonschema import Draft7Validator

from pipeline.cli import main
from pipeline.config import load_config

ROOT = Path(__file__).parents[2]
SPEC = json.loads((ROOT / "tests/vectors/compose-spec/compose-spec.json").read_text(encoding="utf-8"))
HELPER = runpy.run_path(str(ROOT / "tests/broker/compose_settings.py"))


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def ours(compose):
    return {name: service for name, service in compose["services"].items() if service["image"] == "reknit:local"}


def plain(value):
    """A variable with a default, as Compose reads it where the variable is not set."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", str(value))


def test_the_file_is_a_compose_file(compose):
    # The published schema is draft 7 in all but the name that it gives its dialect.
    validator = Draft7Validator(SPEC)
    assert [error.message for error in validator.iter_errors(compose)] == []
    assert not validator.is_valid({"services": {"kafka": {"image": 1}}})
    assert not validator.is_valid({"services": {"kafka": {"depends_on": {"x": {"condition": "soon"}}}}})


def test_every_port_is_bound_to_loopback(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned(compose):
    images = {name: service["image"] for name, service in compose["services"].items()}
    assert images["kafka"] == "apache/kafka:4.1.1"
    assert all(re.fullmatch(r"[^:]+:(v?\d+\.\d+\.\d+|local)", image) for image in images.values())


def test_services_wait_for_what_they_need(compose):
    services = compose["services"]
    assert services["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert services["worker"]["depends_on"]["topics"] == {"condition": "service_completed_successfully"}
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed]
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"topics"}


def test_named_volumes_are_declared_and_mounted_files_exist(compose):
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"]


@pytest.mark.parametrize("name", ["topics", "worker"])
def test_commands_are_commands_of_reknit(compose, name):
    command, words = main, ours(compose)[name]["command"]
    while isinstance(command, click.Group):
        first, *words = words
        command = command.get_command(click.Context(command), first)
        assert command is not None, first
    command.make_context(name, words)


def test_our_services_are_configured_by_variables_that_exist(compose):
    for name, service in ours(compose).items():
        env = {variable: plain(value) for variable, value in service["environment"].items()}
        config = load_config(env=env)
        assert config.bootstrap_servers == "kafka:19092", name
    assert config.metrics_port == 9464


def test_the_worker_may_finish_before_it_is_killed(compose):
    service = ours(compose)["worker"]
    env = {variable: plain(value) for variable, value in service["environment"].items()}
    assert float(service["stop_grace_period"].removesuffix("s")) > load_config(env=env).stop_seconds


def test_what_prometheus_scrapes_is_what_the_worker_serves(compose):
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    targets = [
        target for job in config["scrape_configs"] for group in job["static_configs"] for target in group["targets"]
    ]
    port = compose["services"]["worker"]["environment"]["REKNIT_METRICS_PORT"]
    assert targets == [f"worker:{port}"]
    assert f":{port}/readyz" in compose["services"]["worker"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize(
    ("variable", "setting"),
    [("KAFKA_LOG_DIRS", "log.dirs"), ("KAFKA_NODE_ID", "node.id"), ("KAFKA_A__B_C", "a_b.c"), ("KAFKA_A___B", "a-b")],
)
def test_the_images_variables_become_settings(variable, setting):
    assert HELPER["setting_name"](variable) == setting


def test_the_brokers_settings_can_be_used_on_this_machine(tmp_path):
    ports = {name: 10000 + index for index, name in enumerate(HELPER["listener_names"]())}
    settings = HELPER["settings_here"](tmp_path, ports)
    assert list(ports) == ["CONTROLLER", "PLAINTEXT", "PLAINTEXT_HOST"]
    assert settings["listeners"] == (
        "CONTROLLER://127.0.0.1:10000,PLAINTEXT://127.0.0.1:10001,PLAINTEXT_HOST://127.0.0.1:10002"
    )
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:10001,PLAINTEXT_HOST://127.0.0.1:10002"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:10000"
    assert settings["log.dirs"] == str(tmp_path)
    assert settings["auto.create.topics.enable"] == "false"
    assert "cluster.id" not in settings


def test_the_broker_takes_what_the_topics_hold(compose):
    from topics.declarations import LARGEST_STATE

    assert int(compose["services"]["kafka"]["environment"]["KAFKA_SOCKET_REQUEST_MAX_BYTES"]) > LARGEST_STATE


def test_the_image_holds_the_packages_and_runs_as_nobody_special():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    for package in packages["targets"]["wheel"]["packages"]:
        assert f"COPY {package} ./{package}" in text
        assert f"!{package}" in ignored
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert 'ENTRYPOINT ["reknit"]' in text
