"""What a fix or a rule means, shown by running its example.

``pages`` reads the examples, runs one and says what came of it, ``rendering`` writes that for people, in a terminal or
in docs/. A page never claims what the installed version does not do: its before and after are made when it is asked
for.
"""

from pipeline.explain.pages import (
    FIX_EXAMPLES,
    RULE_EXAMPLES,
    STREAM_EXAMPLES,
    FixExample,
    FixPage,
    RuleExample,
    RulePage,
    StreamExample,
    explain,
    retold,
    summaries,
)
from pipeline.explain.rendering import documents, listing, place_of, plain

__all__ = [
    "FIX_EXAMPLES",
    "RULE_EXAMPLES",
    "STREAM_EXAMPLES",
    "FixExample",
    "FixPage",
    "RuleExample",
    "RulePage",
    "StreamExample",
    "documents",
    "explain",
    "listing",
    "place_of",
    "plain",
    "retold",
    "summaries",
]
