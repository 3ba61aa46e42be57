"""The manifests that are generated from Reknit's declarations: ``python deploy/kubernetes/resources.py`` writes them.

``kafka.yaml`` has the topics and, with the least rights, the users as Strimzi's resources; ``alerts.yaml`` the rules of
``deploy/prometheus``. ``--prefix``, ``--partitions``, ``--replication-factor`` and ``--cluster`` are your own.
"""

# ruff: noqa: INP001 - a script by itself, not a package
from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from reknit.topics.cluster import Wanted, kafka_user, roles, wanted

HERE = Path(__file__).parent
RULES = ("alerts.yml", "recording.yml")


def kafka_topic(topic: Wanted, cluster: str) -> dict[str, Any]:
    """``cluster`` is the name of the ``Kafka`` resource."""
    name = re.sub(r"[^a-z0-9.-]+", "-", topic.name.lower())
    spec = {"partitions": topic.partitions, "replicas": topic.replication_factor, "config": topic.settings}
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}},
        "spec": spec if name == topic.name else {"topicName": topic.name, **spec},
    }


def prometheus_rule(files: Iterable[Path]) -> dict[str, Any]:
    groups = [group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "reknit", "labels": {"app.kubernetes.io/name": "reknit"}},
        "spec": {"groups": groups},
    }


def files(
    prefix: str = "", partitions: int = 12, replication_factor: int = 3, cluster: str = "kafka"
) -> dict[str, str]:
    topics = wanted(prefix=prefix, partitions=partitions, replication_factor=replication_factor)
    kafka = [kafka_topic(topic, cluster) for topic in topics] + [kafka_user(role, cluster) for role in roles(prefix)]
    rules = prometheus_rule(HERE.parent / "prometheus" / name for name in RULES)
    # Names and rights are short; what an alert says is not.
    made = {"kafka.yaml": (kafka, None), "alerts.yaml": ([rules], False)}
    return {
        name: f"# Made by deploy/kubernetes/{Path(__file__).name}.\n"
        + yaml.safe_dump_all(resources, sort_keys=False, width=120, default_flow_style=flow)
        for name, (resources, flow) in made.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prefix", default="")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--replication-factor", type=int, default=3)
    parser.add_argument("--cluster", default="kafka", help="the Kafka resource")
    for name, text in files(**vars(parser.parse_args())).items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
