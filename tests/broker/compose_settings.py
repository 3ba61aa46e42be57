"""The broker settings of docker-compose.yml as a properties file, so that the real jars can be started with them.

The image turns its environment into ``server.properties`` by a rule: the prefix is removed, an underscore becomes a
dot, two become an underscore, three a dash. Settings that depend on the machine (hosts, ports, directories) are
replaced; everything else is used as in the file.
"""

import re
from pathlib import Path

import yaml

COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yml"
_PREFIX = "KAFKA_"
# Read by the image's scripts, not by the broker.
_NOT_SETTINGS = frozenset({"KAFKA_HEAP_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_LOG4J_OPTS", "KAFKA_OPTS"})
_SEPARATORS = {"_": ".", "__": "_", "___": "-"}


def compose():
    return yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))


def settings_from(environment):
    return {
        setting_name(name): str(value)
        for name, value in environment.items()
        if name.startswith(_PREFIX) and name not in _NOT_SETTINGS
    }


def setting_name(variable):
    """``KAFKA_LOG_DIRS`` is ``log.dirs``."""
    return re.sub("_+", lambda found: _SEPARATORS[found[0]], variable.removeprefix(_PREFIX).lower())


def settings_here(directory, ports):
    """The compose file's broker settings for this machine: loopback, ``ports`` by listener name, ``directory``."""
    settings = settings_from(compose()["services"]["kafka"]["environment"])
    here = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    for setting in ("listeners", "advertised.listeners"):
        listeners = [listener.partition("://")[0] for listener in settings[setting].split(",")]
        settings[setting] = ",".join(here[name] for name in listeners)
    controller = settings["controller.listener.names"]
    settings["controller.quorum.voters"] = f"{settings['node.id']}@127.0.0.1:{ports[controller]}"
    settings["log.dirs"] = str(directory)
    return settings


def listener_names():
    settings = settings_from(compose()["services"]["kafka"]["environment"])
    return [listener.partition("://")[0] for listener in settings["listeners"].split(",")]
