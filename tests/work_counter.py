"""Work measured by counting instead of timing, so that results are the same on every machine, however busy."""

import sys

import msgspec


def function_calls(work):
    """Return how many Python functions the work calls."""
    return _profiled(work, lambda event, _argument: event == "call")


def decodes(work):
    """Return how many times the work decodes JSON."""

    def is_decode(event, argument):
        if event != "c_call" or argument.__name__ != "decode":
            return False
        return isinstance(argument.__self__, msgspec.json.Decoder) or argument is msgspec.json.decode

    return _profiled(work, is_decode)


def _profiled(work, counts):
    """Return how many profile events of the work count."""
    count = 0

    def profile(_frame, event, argument):
        nonlocal count
        count += counts(event, argument)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def lines(work):
    """Return how many lines of Python the work executes; each iteration of a loop counts."""
    count, before = 0, sys.gettrace()

    def trace(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
