"""What a fix or a rule means, shown by running its example.

``examples`` reads the examples, ``pages`` runs one and says what came of it, ``plain`` writes that for people. A page
never claims what the installed version does not do: its before and after are made when it is asked for.
"""

from pipeline.explain.examples import FIX_EXAMPLES, RULE_EXAMPLES, FixExample, RuleExample
from pipeline.explain.pages import FixPage, RulePage, explain, summaries
from pipeline.explain.plain import listing, plain

__all__ = [
    "FIX_EXAMPLES",
    "RULE_EXAMPLES",
    "FixExample",
    "FixPage",
    "RuleExample",
    "RulePage",
    "explain",
    "listing",
    "plain",
    "summaries",
]
