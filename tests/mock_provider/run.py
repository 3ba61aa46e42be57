"""Run the sessions of the mock provider: ``make heal ARGS="--sessions 2000"``.

It compares clients that heal in different ways over the scripted sessions, then runs random sessions. The
exit code is 1 if a session is refused permanently, if a refused request is sent again, or if a value is refused twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mock_provider.body_agent import BodyAgent
from mock_provider.checks import is_at_limit, refused_twice, repeats
from mock_provider.driver import run_script
from mock_provider.media import pictures_of
from mock_provider.parties import PARTIES
from mock_provider.provider import Provider
from mock_provider.random_scripts import random_script
from mock_provider.received import Received
from mock_provider.scripts import read_scripts
from mock_provider.session_agent import SessionAgent, Unhealed
from mock_provider.strip_agents import ForgetfulAgent, StrippingAgent, reasoning_in

SCRIPTS = Path(__file__).with_name("sessions.jsonl")
CLIENTS = {
    "no healing": Unhealed,
    "all reasoning left out once": ForgetfulAgent,
    "all reasoning left out, remembered": StrippingAgent,
    "reknit.heal of each body": BodyAgent,
    "Session.refused": SessionAgent,
}


def say(words):
    sys.stdout.write(words + "\n")


def measured(run):
    """Return if a session is alive, its refusals, and the bytes of reasoning and the pictures in its last request."""
    body = json.loads(run.agent.request())
    party = PARTIES[run.party]
    facts = Provider("").facts(party)
    request = Received(
        party=party, state=run.provider.state, facts=facts, organisation="", connection="", body=body, dropped={}
    )
    turns = next(body[name] for name in ("messages", "input", "contents") if name in body)
    reasoning = sum(len(json.dumps(each)) for each in reasoning_in(turns))
    return run.is_alive, len(run.refusals), reasoning, len(list(pictures_of(request)))


def compare():
    """Print what each client achieves in the sessions that can be healed."""
    scripts = [script for script in read_scripts(SCRIPTS.read_bytes()) if script.group != "none"]
    say(f"{len(scripts)} scripted sessions that can be healed:")
    say(f"{'client':<36}{'alive':>7}{'refused':>9}{'reasoning':>11}{'pictures':>10}")
    for name, agent in CLIENTS.items():
        rows = [measured(run_script(script, agent)) for script in scripts]
        alive, refused, reasoning, pictures = (sum(column) for column in zip(*rows, strict=True))
        say(f"{name:<36}{alive:>7}{refused:>9}{reasoning:>11}{pictures:>10}")


def run_random(count, first, *, is_switching):
    """Run random sessions with a session's healing; return how many break a promise."""
    kinds, refusals, broken = Counter(), 0, 0
    for number in range(first, first + count):
        run = run_script(random_script(number, is_switching=is_switching), SessionAgent)
        kinds.update(each.name for each in run.refusals)
        refusals += len(run.refusals)
        is_dead = not run.is_alive and not is_at_limit(run)
        found = [*repeats(run), *refused_twice(run, with_media=True), *(["refused permanently"] if is_dead else [])]
        if found:
            broken += 1
            say(f"session {number}{' switching' if is_switching else ''}: {found}")
    title = "switching providers" if is_switching else "at one kind of provider"
    say(f"{count} random sessions {title}: {refusals} refusals with {len(kinds)} sentences, {broken} broken promises")
    return broken


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=2000, help="number of random sessions of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    compare()
    broken = [run_random(given.sessions, given.first, is_switching=switching) for switching in (False, True)]
    return 1 if any(broken) else 0


if __name__ == "__main__":
    sys.exit(main())
