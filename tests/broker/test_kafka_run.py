"""``deploy/kafka/run`` as a person types it: its output, and that a second one does not harm the first."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.broker

RUN = str(Path(__file__).parents[2] / "deploy" / "kafka" / "run")


def refused(*options):
    done = subprocess.run([RUN, *options], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_a_second_broker_on_a_port_or_a_folder_is_refused_and_leaves_the_first_alone(broker, tmp_path, free_port):
    folder, port = tmp_path / "first", free_port()
    with subprocess.Popen([RUN, "--dir", str(folder), "--port", str(port)], stdout=subprocess.PIPE, text=True) as first:
        try:
            said = first.stdout.readline()
            assert re.fullmatch(
                rf"Kafka at 127\.0\.0\.1:{port}, data in {folder}; Ctrl-C stops it, or kill {first.pid}\n", said
            )
            settings = (folder / "server.properties").read_bytes()
            assert refused("--dir", str(tmp_path / "second"), "--port", str(port)).startswith(f"port {port} is taken")
            assert not (tmp_path / "second" / "server.properties").exists()
            assert refused("--dir", str(folder), "--port", str(free_port())).startswith(f"another broker uses {folder}")
            assert (folder / "server.properties").read_bytes() == settings
            assert first.poll() is None
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
        finally:
            first.terminate()
    # The process that listens there need not be a broker of Reknit's.
    assert refused("--dir", str(tmp_path / "third"), "--port", str(broker.port)).startswith(f"port {broker.port} is")


# As every benchmark does it. A signal that arrives right before the event loop waits is handled when it next wakes up
# (6 of 1,000 programs on a loaded machine), so the program does not sleep for long.
STARTS_A_BROKER = """
import asyncio, sys
from pathlib import Path
import broker

async def run():
    server = broker.Broker(Path(sys.argv[1]))
    server.start()
    try:
        print(server.pid, flush=True)
        for _ in range(600):
            await asyncio.sleep(0.1)
    finally:
        server.stop()

asyncio.run(run())
"""


def test_a_program_that_is_terminated_stops_the_broker_that_it_started(broker, tmp_path):
    env = os.environ | {"PYTHONPATH": str(Path(RUN).parent)}
    command = [sys.executable, "-c", STARTS_A_BROKER, str(tmp_path / "kafka")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env) as program:
        server = int(program.stdout.readline())
        os.kill(server, 0)  # it runs
        program.terminate()
        assert program.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
