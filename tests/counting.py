"""How much work something is, counted instead of timed: the same on every machine, however busy."""

import sys

import msgspec


def function_calls(work):
    """How many Python functions a piece of work calls."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event == "call"

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


def decodes(work):
    """How many times a piece of work has JSON decoded."""
    count = 0

    def profile(_frame, event, argument):
        nonlocal count
        if event == "c_call" and argument.__name__ == "decode":
            count += isinstance(argument.__self__, msgspec.json.Decoder) or argument is msgspec.json.decode

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
