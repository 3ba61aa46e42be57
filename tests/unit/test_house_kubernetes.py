"""The manifests: valid by the published schemas, up to date with their sources, consistent with the worker."""

import json
import runpy
from pathlib import Path

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml

from reknit.pipeline.cli import main
from reknit.pipeline.config import load_config
from reknit.topics.cluster import roles

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "kubernetes"
MANIFESTS = {
    f"{path.name}: {manifest['kind']} {manifest['metadata']['name']}": manifest
    for path in sorted(HERE.glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
CUSTOM = json.loads((ROOT / "tests/vectors/kubernetes/custom-resources.json").read_text(encoding="utf-8"))
KINDS = {"worker": "StatefulSet", "viewer": "Deployment"}
COMPONENT = "app.kubernetes.io/component"
# The oldest release that Kubernetes still maintained when the manifests were written.
KUBERNETES = "1.34"


def validate(manifest):
    if f"I{manifest['kind']}" in CUSTOM["definitions"]:
        jsonschema.Draft7Validator(CUSTOM | {"$ref": f"#/definitions/I{manifest['kind']}"}).validate(manifest)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def only(kind, component="worker"):
    found = [manifest for manifest in MANIFESTS.values() if manifest["kind"] == kind]
    [found] = [one for one in found if one["metadata"]["labels"].get(COMPONENT, component) == component]
    return found


@pytest.fixture(params=["worker", "viewer"])
def pod(request):
    return only(KINDS[request.param], request.param)["spec"]["template"]["spec"]


@pytest.fixture
def container(pod):
    [found] = pod["containers"]
    return found


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid(name):
    validate(MANIFESTS[name])


@pytest.mark.parametrize("kind", ["StatefulSet", "KafkaUser", "ServiceMonitor"])
def test_an_unknown_member_is_detected(kind):
    manifest = next(one for one in MANIFESTS.values() if one["kind"] == kind)
    with pytest.raises(jsonschema.ValidationError):
        validate({**manifest, "spec": {**manifest["spec"], "unheard": 1}})


def test_generated_manifests_are_up_to_date():
    made = runpy.run_path(str(HERE / "resources.py"))["files"]()
    assert {name: (HERE / name).read_text(encoding="utf-8") for name in made} == made


def test_a_topic_whose_name_kubernetes_rejects_keeps_it():
    made = runpy.run_path(str(HERE / "resources.py"))["files"](prefix="Live_")["kafka.yaml"]
    topic = next(yaml.safe_load_all(made))
    assert (topic["metadata"]["name"], topic["spec"]["topicName"]) == ("live-agent.turns.v1", "Live_agent.turns.v1")
    validate(topic)


def configured(container):
    return load_config(env={each["name"]: each["value"] for each in container["env"] if "FILE" not in each["name"]})


def test_programs_are_configured_by_existing_variables(container):
    config = configured(container)
    assert config.kafka.sasl_username in {role.user for role in roles("")}
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(config.state_dir) in mounted
    for variable in container["env"]:
        if "FILE" in variable["name"]:
            assert str(Path(variable["value"]).parent) in mounted


def test_the_worker_has_its_partitions_and_its_disk():
    [container] = only("StatefulSet")["spec"]["template"]["spec"]["containers"]
    config = configured(container)
    assert (config.metrics_port, config.state.store) == (container["ports"][0]["containerPort"], "disk")
    topics = [manifest for manifest in MANIFESTS.values() if manifest["kind"] == "KafkaTopic"]
    assert {topic["spec"]["partitions"] for topic in topics} == {config.partitions}
    assert config.kafka.sasl_username == "reknit-worker"


def test_there_is_one_viewer_and_it_requires_a_login():
    spec = only("Deployment", "viewer")["spec"]
    [container] = spec["template"]["spec"]["containers"]
    name, *words = container["args"]
    given = main.get_command(click.Context(main), name).make_context(name, words).params
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert (
        given["port"] == container["ports"][0]["containerPort"] == only("Service", "viewer")["spec"]["ports"][0]["port"]
    )
    assert str(given["token_file"].parent) in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "/healthz"
    }
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == only("Service", "viewer")["spec"]["selector"] == labels


def test_the_worker_may_finish_before_it_is_killed():
    pod = only("StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > load_config(env={}).stop_seconds


def test_all_selectors_match_the_workers_pods():
    labels = only("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    spec = {kind: only(kind)["spec"]["selector"] for kind in ("StatefulSet", "PodDisruptionBudget", "ServiceMonitor")}
    assert [selector["matchLabels"] for selector in spec.values()] == [labels] * 3
    assert only("Service")["spec"]["selector"] == only("Service")["metadata"]["labels"] == labels
    # Alerts and dashboards select the job of this name.
    assert labels[only("ServiceMonitor")["spec"]["jobLabel"]] == "reknit"


def test_no_container_has_more_rights_than_it_needs(pod, container):
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
