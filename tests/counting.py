"""How much work something is, counted instead of timed: the same on every machine, however busy."""

import sys

import msgspec


def function_calls(work):
    """How many Python functions a piece of work calls."""
    return _profiled(work, lambda event, _argument: event == "call")


def decodes(work):
    """How many times a piece of work has JSON decoded."""

    def is_decode(event, argument):
        if event != "c_call" or argument.__name__ != "decode":
            return False
        return isinstance(argument.__self__, msgspec.json.Decoder) or argument is msgspec.json.decode

    return _profiled(work, is_decode)


def _profiled(work, counts):
    """How many events of a profile of the work count."""
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
    """How many lines of Python a piece of work runs; a loop counts each time round."""
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
