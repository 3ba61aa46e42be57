"""What becomes of requests that their provider accepted: normalised for the same provider, and compared.

Run as a program, it tells the shares by provider and what the requests behind them are:

    python tests/corpus/harmless.py [PROVIDER ...]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import NamedTuple

import click
from recorded import accepted

from pipeline.fixes import FIXES
from pipeline.testing.equal import Difference, differences
from reknit import normalize

PROVIDERS = ("anthropic", "bedrock-converse", "gemini", "openai-chat", "openai-responses")


class Outcome(NamedTuple):
    """What came of one accepted request: codes of its fixes, hard violations, and what differs beyond the fixes."""

    id: str
    lossless: tuple[str, ...]
    lossy: tuple[str, ...]
    rejected: tuple[str, ...]
    different: tuple[Difference, ...]

    @property
    def harmed(self) -> bool:
        """Whether something was lost, refused, or changed without a word."""
        return bool(self.lossy or self.rejected or self.different)


def is_conversation(row: dict) -> bool:
    """Whether it is a conversation's request, whose 200 was recorded and is not just assumed."""
    return not row.get("response_only") and any(key in row["request"] for key in ("messages", "input", "contents"))


def outcome(row: dict, provider: str) -> Outcome:
    """One recorded request, sent back to its own provider."""
    request = row["request"]
    if row.get("model") and "model" not in request and "modelId" not in request:
        request = request | {"model": row["model"]}
    sent = json.dumps(request).encode()
    done = normalize(sent, to=provider)
    rejected = tuple(each.rule for each in done.violations if each.severity == "hard")
    lossless = tuple(fix.code for fix in done.fixes if FIXES[fix.code].lossless)
    lossy = tuple(fix.code for fix in done.fixes if not FIXES[fix.code].lossless)
    if done.body is None:
        return Outcome(row["id"], lossless, lossy, rejected or ("no body",), ())
    return Outcome(row["id"], lossless, lossy, rejected, tuple(differences(sent, done.body, provider, done.fixes)))


def tell(provider: str) -> None:
    """Print the shares of one provider, and examples by kind."""
    outcomes = [outcome(row, provider) for row in accepted(provider) if is_conversation(row)]
    harmed, mended = sum(each.harmed for each in outcomes), sum(bool(each.lossless) for each in outcomes)
    click.echo(f"\n{provider}: {len(outcomes)} accepted, {harmed} harmed, {mended} with a lossless fix")
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for each in outcomes:
        seen = {f"lossless {code}" for code in each.lossless} | {f"lossy {code}" for code in each.lossy}
        seen |= {f"rejected {rule}" for rule in each.rejected}
        seen |= {f"differs  {_place(one.path)} {one.kind}: {one.before} -> {one.after}"[:150] for one in each.different}
        kinds.update(seen)
        examples.update(dict.fromkeys(seen - set(examples), each.id))
    for kind, count in kinds.most_common(60):
        click.echo(f"{count:5} {kind}  [{examples[kind]}]")


def _place(path: str) -> str:
    return ".".join("N" if step.isdecimal() else step for step in path.split("."))


if __name__ == "__main__":
    for name in sys.argv[1:] or PROVIDERS:
        tell(name)
