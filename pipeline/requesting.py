"""A request from where a session stands: its open end rendered, encoded and judged behind what is settled."""

from __future__ import annotations

from pipeline.history.machine import History
from pipeline.outcome import Normalized, Shared
from pipeline.rules import RULES, Violation
from pipeline.targets import Target
from pipeline.track import Track


def make_request(track: Track, shared: Shared, history: History) -> Normalized:
    """The request for one target; the session's settled part is in ``track``."""
    tail = _tail(history.policy.tail, track.target)
    rendered = history.open_messages(tail)
    ending = track.dialect.end(rendered.messages, track.state, len(track.chunks), final=tail == "prefill")
    # Until a turn has been taken, a system message may still come and change the head.
    done = Normalized(track, shared, rendered, ending, steady=bool(history.exchanges))
    last = history.messages + len(rendered.messages) - 1 if ending.last is None else ending.last
    done.violations = _judged(track, done, last, endless=tail == "keep" or rendered.assistant_last)
    if rendered.assistant_last:
        # By policy it is not mended, so it is judged as the models do that take no prefill.
        rule = RULES[track.target.tail_rule]
        done.violations.append(rule.broken(f"messages.{last}", "hard", role="assistant"))
    track.reset = ""
    return done


def _tail(tail: str, target: Target) -> str:
    """The policy for the end as the target can have it: a text has no place for a half-said answer."""
    return "continue" if target.text and tail in {"keep", "prefill"} else tail


def _judged(track: Track, done: Normalized, last: int, *, endless: bool) -> list[Violation]:
    if track.target.text:
        return track.judge_text(*done.ends, lambda: done.unjudged)
    violations = track.judge(done.open_data, done.judged_head)
    if not endless:
        return violations
    # What the end of this history is like is not yet for the target to judge: the next user turn will be the last.
    return [
        violation
        for violation in violations
        if violation.rule not in track.target.tail_rules or violation.path.split(".")[1:2] not in ([], [str(last)])
    ]
