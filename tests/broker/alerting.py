"""A real Prometheus with the rules of ``deploy/prometheus``, in which a minute of a rule passes in a second."""

import asyncio
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import harness
import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
# Seconds of a rule that pass in one second.
HASTE = 60
# Thresholds in seconds, and their values here: no test is without a broker for half a minute.
_THRESHOLDS = {"reknit_broker_silent_seconds) > 30": "reknit_broker_silent_seconds) > 4"}
# A watchdog looks every three seconds, and Prometheus knows its targets after five, however short a minute is.
_FOR = {"ReknitPartitionWithoutOwner": "10s", "ReknitNoWorker": "10s"}
# A proxy of the environment is for the world outside, not for the loopback address.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def hastened(text):
    """Rules whose every span of time is as much shorter."""
    for slow, quick in _THRESHOLDS.items():
        assert slow in text
        text = text.replace(slow, quick)
    rules = yaml.safe_load(text)
    for group in rules["groups"]:
        for rule in group["rules"]:
            shorter = {name: _shorter(rule[name]) for name in ("expr", "for") if name in rule}
            rule.update(shorter)
            rule["for"] = _FOR.get(rule["alert"], rule.get("for", "0s"))
    return rules


def _shorter(text):
    return re.sub(r"\b(\d+)([mhdw])\b", lambda found: f"{int(found[1]) * _SECONDS[found[2]] // HASTE}s", text)


class Prometheus:
    """Scrapes ``ports`` of this machine every second, as the job of workers that the rules name.

    ``history`` has earlier samples, in the text format of OpenMetrics. ``gateways`` are the ports of gateways.
    """

    def __init__(self, folder, port, ports, history="", gateways=()):
        folder.mkdir()
        self._folder, self._url = folder, f"http://127.0.0.1:{port}"
        (folder / "rules.yml").write_text(yaml.safe_dump(hastened(RULES.read_text(encoding="utf-8"))))
        jobs = {"reknit": ports, "reknit-serve": gateways}
        targets = {name: [f"127.0.0.1:{each}" for each in places] for name, places in jobs.items()}
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yml")],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": places}]} for name, places in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        if history:
            (folder / "history").write_text(history)
            command = [
                "promtool",
                "tsdb",
                "create-blocks-from",
                "openmetrics",
                str(folder / "history"),
                str(folder / "data"),
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=240)
        self._command = [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        self._process = None

    def __enter__(self):
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_error):
        self._process.terminate()
        self._process.wait()

    def asked(self, query):
        """The labels of each series that a query gives now."""
        try:
            with _DIRECT.open(
                f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=5
            ) as answer:
                return [series["metric"] for series in json.load(answer)["data"]["result"]]
        except OSError:
            return []

    async def until(self, query, seconds=60):
        """Wait until a query gives something; its labels."""
        deadline = harness.deadline_after(seconds)
        while not (found := await asyncio.to_thread(self.asked, query)):
            assert time.monotonic() < deadline, (query, sorted(map(str, self.asked("ALERTS"))))
            await asyncio.sleep(0.2)
        return found

    async def fires(self, alert, **labels):
        """Wait until an alert fires with these labels."""
        matchers = "".join(f', {name}="{value}"' for name, value in labels.items())
        return await self.until(f'ALERTS{{alertstate="firing", alertname="{alert}"{matchers}}}')

    async def fired(self, seconds):
        """All alerts that fired within the last ``seconds``: their names, and the labels that name the place."""
        found = await asyncio.to_thread(self.asked, f'count_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])')
        kept = ("pipeline", "topic", "partition", "code", "rule", "outcome", "target", "source")
        kept += ("upstream", "healing", "reason")
        return {(one["alertname"], *(f"{name}={one[name]}" for name in kept if one.get(name))) for one in found}
