"""The compose file and the image, without a Docker engine: valid, consistent with the commands, not exposed."""

import importlib.metadata
import json
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest
import yaml
from jsonschema import Draft7Validator
from packaging.requirements import Requirement

from reknit.pipeline.cli import main
from reknit.pipeline.config import load_config

ROOT = Path(__file__).parents[2]
SPEC = json.loads((ROOT / "tests/vectors/compose-spec/compose-spec.json").read_text(encoding="utf-8"))
IMAGE = ROOT / "deploy/image"
HELPER = runpy.run_path(str(ROOT / "tests/broker/compose_settings.py"))


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def ours(compose):
    return {name: service for name, service in compose["services"].items() if service["image"] == "reknit:local"}


def plain(value):
    """Return the default of a variable, as Compose uses it if the variable is not set."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", str(value))


def test_the_file_is_a_compose_file(compose):
    # The published schema is draft 7, although it declares another name for its dialect.
    validator = Draft7Validator(SPEC)
    assert [error.message for error in validator.iter_errors(compose)] == []
    assert not validator.is_valid({"services": {"kafka": {"image": 1}}})
    assert not validator.is_valid({"services": {"kafka": {"depends_on": {"x": {"condition": "soon"}}}}})


def test_every_port_is_bound_to_loopback(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert {name for name, service in compose["services"].items() if "ports" in service} == {
        "kafka",
        "viewer",
        "prometheus",
        "grafana",
    }
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned(compose):
    images = {name: service["image"] for name, service in compose["services"].items()}
    assert images["kafka"] == "apache/kafka:4.1.1"
    assert all(re.fullmatch(r"[^:]+:(v?\d+\.\d+\.\d+|local)", image) for image in images.values())


def test_services_wait_for_their_dependencies(compose):
    services = compose["services"]
    assert services["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert services["worker"]["depends_on"]["topics"] == {"condition": "service_completed_successfully"}
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed]
    # The worker's healthcheck is in the image; the one-shot service has none.
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"worker"}
    assert services["topics"]["healthcheck"] == {"disable": True}


def test_named_volumes_are_declared_and_mounted_files_exist(compose):
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source, named, _ = volume.partition(":")
            if not named:
                continue  # each worker's own
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"]


@pytest.mark.parametrize("name", ["topics", "worker", "viewer"])
def test_commands_are_commands_of_reknit(compose, name):
    command, words = main, ours(compose)[name]["command"]
    while isinstance(command, click.Group):
        first, *words = words
        command = command.get_command(click.Context(command), first)
        assert command is not None, first
    command.make_context(name, words)


def test_services_are_configured_by_existing_variables(compose):
    for name, service in ours(compose).items():
        env = {variable: plain(value) for variable, value in service["environment"].items()}
        config = load_config(env=env)
        assert config.bootstrap_servers == "kafka:19092", name
        if name == "worker":
            assert config.metrics_port == 9464


def test_the_viewer_requires_a_login_and_keeps_its_index(compose):
    viewer = compose["services"]["viewer"]
    context = main.get_command(click.Context(main), "viewer").make_context("viewer", [*viewer["command"][1:]])
    [volume] = viewer["volumes"]
    kept = volume.partition(":")[2]
    assert viewer["environment"]["REKNIT_STATE_DIR"] == kept
    assert str(Path(context.params["token_file"]).parent) == kept
    [port] = viewer["ports"]
    assert port == "127.0.0.1:{0}:{0}".format(context.params["port"])
    assert viewer["healthcheck"]["test"][-2:] == [str(context.params["port"]), "/healthz"]


def test_the_worker_may_finish_before_it_is_killed(compose):
    service = ours(compose)["worker"]
    env = {variable: plain(value) for variable, value in service["environment"].items()}
    assert float(service["stop_grace_period"].removesuffix("s")) > load_config(env=env).stop_seconds


def test_prometheus_scrapes_the_workers_metrics(compose):
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    port = int(compose["services"]["worker"]["environment"]["REKNIT_METRICS_PORT"])
    [job] = config["scrape_configs"]
    assert [(found["names"], found["port"]) for found in job["dns_sd_configs"]] == [(["worker"], port)]
    assert job["job_name"] == "reknit"


def test_several_workers_can_run(compose):
    worker = compose["services"]["worker"]
    assert "ports" not in worker
    assert "container_name" not in worker
    assert worker["volumes"] == [worker["environment"]["REKNIT_STATE_DIR"]]


def test_grafana_finds_its_dashboards_and_their_source(compose):
    mounted = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    places = {inside: ROOT / outside for outside, inside in mounted.items() if outside.startswith(".")}
    provisioning = places["/etc/grafana/provisioning"]
    [provider] = yaml.safe_load((provisioning / "dashboards/reknit.yml").read_text(encoding="utf-8"))["providers"]
    assert list(places[provider["options"]["path"]].glob("*.json"))
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"


@pytest.mark.parametrize("path", ["/readyz", "/healthz"])
@pytest.mark.parametrize(("status", "ends"), [(200, 0), (503, 1), (None, 1)])
def test_a_container_is_healthy_when_its_worker_is_ready_or_its_viewer_answers(path, status, ends, monkeypatch):
    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == path else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        if status is not None:
            threading.Thread(target=server.handle_request, daemon=True).start()
        port = str(server.server_port) if status else "1"
        monkeypatch.setenv("REKNIT_METRICS_PORT", port)
        given = [] if path == "/readyz" else [port, path]
        command = [sys.executable, "-I", "-S", str(IMAGE / "healthcheck.py"), *given]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == ends, done.stderr


def locked(name):
    """Return the version of each package in a lock; assert that each line has at least one digest."""
    lines = (IMAGE / name).read_text(encoding="utf-8").splitlines()
    assert all("==" in line and " --hash=sha256:" in line for line in lines[1:])
    return dict(line.partition(" ")[0].split("==") for line in lines[1:])


DECLARED = runpy.run_path(str(IMAGE / "lock.py"))["declared"]()


@pytest.mark.parametrize("name", DECLARED)
def test_a_lock_has_the_declared_packages_and_their_dependencies(name):
    found = locked(name)
    needed = [Requirement(each) for each in DECLARED[name]]
    for package, version in found.items():
        try:
            there = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if there.version == version:  # another version may have other dependencies
            needed += [Requirement(each) for each in there.requires or ()]
    image = {"python_version": "3.12", "python_full_version": "3.12.12", "sys_platform": "linux", "extra": ""}
    for requirement in needed:
        if requirement.marker is None or requirement.marker.evaluate(image):
            package = re.sub(r"[-_.]+", "-", requirement.name).lower()
            assert package in found, f"run deploy/image/lock.py: {requirement} is not locked"
            assert requirement.specifier.contains(found[package]), f"run deploy/image/lock.py: {requirement}"


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


def test_the_broker_accepts_records_of_the_topics_sizes(compose):
    from reknit.topics import LARGEST_STATE

    assert int(compose["services"]["kafka"]["environment"]["KAFKA_SOCKET_REQUEST_MAX_BYTES"]) > LARGEST_STATE


def test_the_image_contains_the_packages_and_runs_without_privileges():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    for package in packages["targets"]["wheel"]["only-include"]:
        assert f"COPY {package} ./{package}" in text
        assert f"!{package}" in ignored
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["python:3.12.12-slim-bookworm"] * 2
    assert "HEALTHCHECK" in text
    assert "org.opencontainers.image.version=" in text
    for name in DECLARED:
        assert f"install --require-hashes -r deploy/image/{name}" in text
    assert 'ENTRYPOINT ["reknit"]' in text
