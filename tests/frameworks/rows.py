"""The loop of the scripts `load*.py`: lists of messages come from stdin, and the outcome of each goes to stdout."""

import json
import sys


def each_list(load):
    """Call a function with each list of messages; write its error, or null, as a line."""
    for line in sys.stdin:
        try:
            load(json.loads(line))
        except Exception as error:  # noqa: BLE001  whatever the library raises is the outcome
            outcome = f"{type(error).__name__}: {error}"
        else:
            outcome = None
        sys.stdout.write(json.dumps(outcome) + "\n")
