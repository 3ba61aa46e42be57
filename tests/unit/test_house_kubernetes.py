"""The manifests: valid by the published schemas, current with what they are made from, in step with the worker."""

import json
import runpy
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from pipeline.config import load_config
from topics.rights import roles

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "kubernetes"
MANIFESTS = {
    f"{path.name}: {manifest['kind']} {manifest['metadata']['name']}": manifest
    for path in sorted(HERE.glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
CUSTOM = json.loads((ROOT / "tests/vectors/kubernetes/custom-resources.json").read_text(encoding="utf-8"))
# The oldest release that Kubernetes still maintained when the manifests were written.
KUBERNETES = "1.34"


def validate(manifest):
    if f"I{manifest['kind']}" in CUSTOM["definitions"]:
        jsonschema.Draft7Validator(CUSTOM | {"$ref": f"#/definitions/I{manifest['kind']}"}).validate(manifest)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def only(kind):
    [found] = [manifest for manifest in MANIFESTS.values() if manifest["kind"] == kind]
    return found


@pytest.fixture
def container():
    [found] = only("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_valid(name):
    validate(MANIFESTS[name])


@pytest.mark.parametrize("kind", ["StatefulSet", "KafkaUser", "ServiceMonitor"])
def test_a_member_that_nobody_knows_is_noticed(kind):
    manifest = next(one for one in MANIFESTS.values() if one["kind"] == kind)
    with pytest.raises(jsonschema.ValidationError):
        validate({**manifest, "spec": {**manifest["spec"], "unheard": 1}})


def test_what_is_made_is_current():
    made = runpy.run_path(str(HERE / "resources.py"))["files"]()
    assert {name: (HERE / name).read_text(encoding="utf-8") for name in made} == made


def test_a_topic_whose_name_kubernetes_does_not_take_keeps_it():
    made = runpy.run_path(str(HERE / "resources.py"))["files"](prefix="Live_")["kafka.yaml"]
    topic = next(yaml.safe_load_all(made))
    assert (topic["metadata"]["name"], topic["spec"]["topicName"]) == ("live-agent.turns.v1", "Live_agent.turns.v1")
    validate(topic)


def test_the_worker_is_configured_by_variables_that_exist(container):
    config = load_config(env={each["name"]: each["value"] for each in container["env"] if "FILE" not in each["name"]})
    assert (config.metrics_port, config.state.store) == (container["ports"][0]["containerPort"], "disk")
    topics = [manifest for manifest in MANIFESTS.values() if manifest["kind"] == "KafkaTopic"]
    assert {topic["spec"]["partitions"] for topic in topics} == {config.partitions}
    assert config.kafka.sasl_username == next(iter(roles(""))).user
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(config.state_dir) in mounted
    for variable in container["env"]:
        if "FILE" in variable["name"]:
            assert str(Path(variable["value"]).parent) in mounted


def test_the_worker_may_finish_before_it_is_killed():
    pod = only("StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > load_config(env={}).stop_seconds


def test_everything_selects_the_workers_pods():
    labels = only("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    spec = {kind: only(kind)["spec"]["selector"] for kind in ("StatefulSet", "PodDisruptionBudget", "ServiceMonitor")}
    assert [selector["matchLabels"] for selector in spec.values()] == [labels] * 3
    assert only("Service")["spec"]["selector"] == only("Service")["metadata"]["labels"] == labels
    # Alerts and dashboards look for the job of this name.
    assert labels[only("ServiceMonitor")["spec"]["jobLabel"]] == "reknit"


def test_the_worker_has_no_more_power_than_it_needs(container):
    pod = only("StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
