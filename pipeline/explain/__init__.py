"""What a fix or a rule means, shown by running its example.

``pages`` reads the examples, runs one and says what came of it. ``telling`` puts that into words, which ``rendering``
sets for a terminal and for docs/, and the viewer for a browser. A page never claims what the installed version does not
do: its before and after are made when it is asked for.
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
from pipeline.explain.telling import Told, told

__all__ = [
    "FIX_EXAMPLES",
    "RULE_EXAMPLES",
    "STREAM_EXAMPLES",
    "FixExample",
    "FixPage",
    "RuleExample",
    "RulePage",
    "StreamExample",
    "Told",
    "documents",
    "explain",
    "listing",
    "place_of",
    "plain",
    "retold",
    "summaries",
    "told",
]
