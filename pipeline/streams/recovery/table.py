"""The transition table of recovery: one flat table for all sources and all versions of them.

A source streams **attempts** at messages. An attempt may be cut and replaced, with or without a word about it, so what
was streamed stays unconfirmed until a complete message holds it. The table says what an attempt is worth when the next
thing comes; the actions it names are in ``machine``. It was measured, not designed: five versions of the Claude CLI
against an API that drops, refuses and overloads.

An API's own stream (``confirmed_by`` stop) goes through the same table. It repeats nothing, so its blocks are
confirmed by their stops and the message's stop reason; an attempt that does not get that far is worth nothing once
the next one starts; and what streams where no message is can only belong to one whose start was lost.

States:

- ``IDLE``: no message yet in this run.
- ``OPEN``: an attempt streams.
- ``CUT``: it was cut, with a false stop, without a stop reason, or by a retry. What is unconfirmed waits: a later
  attempt withdraws it, the end of the run keeps it.
- ``FINISHED``: it has a stop reason, but not yet its stop. (The connection can still be lost here, and then some
  versions ask again.)
- ``ANSWERED``: finished by tool calls, and all of them have results, so it was accepted.
- ``DONE``: finished and stopped.
- ``PROMOTED``: a message that never streamed, known from complete messages only.
- ``CLOSED``: the run's result has come. What is on the screen stays.

A complete message of another id, in place of an attempt that has not stopped, withdraws of what that attempt confirmed
only what it says again: the source leaves the rest out for a while, but keeps it. Another run in the same pipe
withdraws nothing at all.

Two inputs never change anything: events of a message that is over (``LATE``: in some versions a replaced attempt still
gets its stops), and what stands beside the messages (``ASIDE``).
"""

from __future__ import annotations

import enum

from pipeline.errors import StreamError


class _Word(enum.StrEnum):
    """A word that looks itself up fast: the hash that enums have is a call in Python, and the table asks for three."""

    __hash__ = str.__hash__


class State(_Word):
    """What is known about the current message."""

    IDLE = "idle"
    OPEN = "open"
    CUT = "cut"
    FINISHED = "finished"
    ANSWERED = "answered"
    DONE = "done"
    PROMOTED = "promoted"
    CLOSED = "closed"


class Input(_Word):
    """A common event, seen from the current message."""

    START = "message started"
    BLOCK_START = "block started"
    BLOCK_DELTA = "block delta"
    BLOCK_NOTE = "block noted"
    BLOCK_STOP = "block stopped"
    UNSTARTED = "content of a message whose start was lost"
    FINISH = "stop reason"
    FINISH_ANSWERED = "stop reason, and all calls have results"
    FINISH_STOPPED = "stop reason of a message that stopped without one, where nothing else proves it"
    NO_FINISH = "null stop reason"
    STOP = "message stopped"
    ABANDON = "message stopped, blocks abandoned"
    OWN = "complete message, this one"
    FOREIGN = "complete message, another one"
    USAGE = "token counts"
    RETRY = "retry, or an error that ends the attempt"
    ANSWER = "the last missing tool result of a finished message"
    ASIDE = "something beside the messages"
    LATE = "event of a message that is over"
    RESULT = "result"
    RESULT_BEFORE = "result of messages before this one"
    END = "end of the run"
    NEXT_RUN = "another run begins while this message is not over"


class Action(_Word):
    """What to do; each is a method of ``machine.Machine``."""

    IGNORE = "nothing, except that content of an unknown type is passed on"
    SHOW = "pass on what stands beside the messages"
    TAKE_STRAY = "nothing if a complete message tells it again, else as in an open attempt"
    START_NEXT = "close the message, begin an attempt"
    START_AGAIN = "withdraw what is unconfirmed, begin an attempt"
    START_UNSEEN = "close the message, begin an attempt with the block"
    OPEN_BLOCK = "start an item"
    EXTEND_BLOCK = "pass on a delta"
    NOTE_BLOCK = "remember what stands beside the block's text"
    STOP_BLOCK = "remember that the block's stream stopped"
    FINISH = "remember the stop reason"
    FINISH_STOPPED = "remember the stop reason, close the turn once more"
    COUNT = "remember the token counts, or tell them if the turn is closed"
    STOP = "close the turn"
    ABANDON = "close the turn, give up the blocks that are named"
    CONFIRM = "complete the blocks that streamed, promote those that did not"
    TAKE_NEXT = "close the message, promote the next"
    REPLACE_REST = "withdraw what is unconfirmed, promote the next"
    REPLACE_SAID = "withdraw what is unconfirmed and what the next says again, promote the next"
    REPORT = "report the result"
    SUM_UP = "complete what is open as incomplete, report the result"
    END = "complete what is open as incomplete"
    START_RUN = "complete what is open as incomplete, show the run that begins"


S, A = State, Action
I = Input  # noqa: E741  the table reads best with one letter each

TABLE: dict[tuple[State, Input], tuple[State, Action]] = {
    # Idle: block events cannot come, without a message they are late.
    (S.IDLE, I.START): (S.OPEN, A.START_NEXT),
    (S.IDLE, I.UNSTARTED): (S.OPEN, A.START_UNSEEN),
    (S.IDLE, I.FOREIGN): (S.PROMOTED, A.TAKE_NEXT),
    (S.IDLE, I.RETRY): (S.IDLE, A.SHOW),
    (S.IDLE, I.ASIDE): (S.IDLE, A.SHOW),
    (S.IDLE, I.LATE): (S.IDLE, A.IGNORE),
    (S.IDLE, I.RESULT): (S.IDLE, A.SUM_UP),
    (S.IDLE, I.END): (S.IDLE, A.END),
    # Open: the only state in which a block grows and can be confirmed afterwards.
    (S.OPEN, I.START): (S.OPEN, A.START_AGAIN),
    (S.OPEN, I.BLOCK_START): (S.OPEN, A.OPEN_BLOCK),
    (S.OPEN, I.BLOCK_DELTA): (S.OPEN, A.EXTEND_BLOCK),
    (S.OPEN, I.BLOCK_NOTE): (S.OPEN, A.NOTE_BLOCK),
    (S.OPEN, I.BLOCK_STOP): (S.OPEN, A.STOP_BLOCK),
    (S.OPEN, I.FINISH): (S.FINISHED, A.FINISH),
    (S.OPEN, I.FINISH_ANSWERED): (S.ANSWERED, A.FINISH),
    (S.OPEN, I.NO_FINISH): (S.CUT, A.IGNORE),
    (S.OPEN, I.USAGE): (S.OPEN, A.COUNT),
    (S.OPEN, I.STOP): (S.CUT, A.STOP),
    (S.OPEN, I.ABANDON): (S.CUT, A.ABANDON),
    (S.OPEN, I.OWN): (S.OPEN, A.CONFIRM),
    # No stop was seen, so the source forgot the attempt for now; what was confirmed stays in its transcript.
    (S.OPEN, I.FOREIGN): (S.PROMOTED, A.REPLACE_SAID),
    (S.OPEN, I.RETRY): (S.CUT, A.SHOW),
    (S.OPEN, I.ASIDE): (S.OPEN, A.SHOW),
    (S.OPEN, I.LATE): (S.OPEN, A.IGNORE),
    (S.OPEN, I.RESULT): (S.CLOSED, A.SUM_UP),
    (S.OPEN, I.RESULT_BEFORE): (S.OPEN, A.REPORT),
    (S.OPEN, I.END): (S.IDLE, A.END),
    (S.OPEN, I.NEXT_RUN): (S.IDLE, A.START_RUN),
    # Cut: what was confirmed stays, whatever comes.
    (S.CUT, I.START): (S.OPEN, A.START_AGAIN),
    (S.CUT, I.UNSTARTED): (S.CUT, A.TAKE_STRAY),
    (S.CUT, I.BLOCK_START): (S.CUT, A.TAKE_STRAY),
    (S.CUT, I.BLOCK_DELTA): (S.CUT, A.TAKE_STRAY),
    (S.CUT, I.BLOCK_NOTE): (S.CUT, A.TAKE_STRAY),
    (S.CUT, I.BLOCK_STOP): (S.CUT, A.TAKE_STRAY),
    (S.CUT, I.FINISH): (S.CUT, A.IGNORE),
    (S.CUT, I.FINISH_ANSWERED): (S.CUT, A.IGNORE),
    (S.CUT, I.FINISH_STOPPED): (S.DONE, A.FINISH_STOPPED),
    (S.CUT, I.NO_FINISH): (S.CUT, A.IGNORE),
    (S.CUT, I.USAGE): (S.CUT, A.COUNT),
    (S.CUT, I.STOP): (S.CUT, A.STOP),
    (S.CUT, I.ABANDON): (S.CUT, A.ABANDON),
    (S.CUT, I.OWN): (S.CUT, A.CONFIRM),
    (S.CUT, I.FOREIGN): (S.PROMOTED, A.REPLACE_REST),
    (S.CUT, I.RETRY): (S.CUT, A.SHOW),
    (S.CUT, I.ANSWER): (S.CUT, A.SHOW),
    (S.CUT, I.ASIDE): (S.CUT, A.SHOW),
    (S.CUT, I.LATE): (S.CUT, A.IGNORE),
    (S.CUT, I.RESULT): (S.CLOSED, A.SUM_UP),
    (S.CUT, I.RESULT_BEFORE): (S.CUT, A.REPORT),
    (S.CUT, I.END): (S.IDLE, A.END),
    (S.CUT, I.NEXT_RUN): (S.IDLE, A.START_RUN),
    # Finished: a new attempt means that it was accepted, another complete message that it was not.
    (S.FINISHED, I.START): (S.OPEN, A.START_NEXT),
    (S.FINISHED, I.BLOCK_START): (S.FINISHED, A.TAKE_STRAY),
    (S.FINISHED, I.BLOCK_DELTA): (S.FINISHED, A.TAKE_STRAY),
    (S.FINISHED, I.BLOCK_NOTE): (S.FINISHED, A.TAKE_STRAY),
    (S.FINISHED, I.BLOCK_STOP): (S.FINISHED, A.TAKE_STRAY),
    (S.FINISHED, I.FINISH): (S.FINISHED, A.FINISH),
    (S.FINISHED, I.FINISH_ANSWERED): (S.ANSWERED, A.FINISH),
    (S.FINISHED, I.NO_FINISH): (S.FINISHED, A.IGNORE),
    (S.FINISHED, I.USAGE): (S.FINISHED, A.COUNT),
    (S.FINISHED, I.STOP): (S.DONE, A.STOP),
    (S.FINISHED, I.ABANDON): (S.CUT, A.ABANDON),
    (S.FINISHED, I.OWN): (S.FINISHED, A.CONFIRM),
    (S.FINISHED, I.FOREIGN): (S.PROMOTED, A.REPLACE_SAID),
    (S.FINISHED, I.RETRY): (S.CUT, A.SHOW),
    (S.FINISHED, I.ANSWER): (S.ANSWERED, A.SHOW),
    (S.FINISHED, I.ASIDE): (S.FINISHED, A.SHOW),
    (S.FINISHED, I.LATE): (S.FINISHED, A.IGNORE),
    (S.FINISHED, I.RESULT): (S.CLOSED, A.SUM_UP),
    (S.FINISHED, I.RESULT_BEFORE): (S.FINISHED, A.REPORT),
    (S.FINISHED, I.END): (S.IDLE, A.END),
    (S.FINISHED, I.NEXT_RUN): (S.IDLE, A.START_RUN),
    # Answered: the tools ran, so nothing replaces it any more; a retry is the next message's.
    (S.ANSWERED, I.START): (S.OPEN, A.START_NEXT),
    (S.ANSWERED, I.BLOCK_START): (S.ANSWERED, A.TAKE_STRAY),
    (S.ANSWERED, I.BLOCK_DELTA): (S.ANSWERED, A.TAKE_STRAY),
    (S.ANSWERED, I.BLOCK_NOTE): (S.ANSWERED, A.TAKE_STRAY),
    (S.ANSWERED, I.BLOCK_STOP): (S.ANSWERED, A.TAKE_STRAY),
    (S.ANSWERED, I.FINISH): (S.ANSWERED, A.IGNORE),
    (S.ANSWERED, I.FINISH_ANSWERED): (S.ANSWERED, A.IGNORE),
    (S.ANSWERED, I.NO_FINISH): (S.ANSWERED, A.IGNORE),
    (S.ANSWERED, I.USAGE): (S.ANSWERED, A.COUNT),
    (S.ANSWERED, I.STOP): (S.DONE, A.STOP),
    (S.ANSWERED, I.ABANDON): (S.CUT, A.ABANDON),
    (S.ANSWERED, I.OWN): (S.ANSWERED, A.CONFIRM),
    (S.ANSWERED, I.FOREIGN): (S.PROMOTED, A.TAKE_NEXT),
    (S.ANSWERED, I.RETRY): (S.ANSWERED, A.SHOW),
    (S.ANSWERED, I.ANSWER): (S.ANSWERED, A.SHOW),
    (S.ANSWERED, I.ASIDE): (S.ANSWERED, A.SHOW),
    (S.ANSWERED, I.LATE): (S.ANSWERED, A.IGNORE),
    (S.ANSWERED, I.RESULT): (S.CLOSED, A.SUM_UP),
    (S.ANSWERED, I.RESULT_BEFORE): (S.ANSWERED, A.REPORT),
    (S.ANSWERED, I.END): (S.IDLE, A.END),
    (S.ANSWERED, I.NEXT_RUN): (S.IDLE, A.START_RUN),
    # Done: complete messages of it may still come, nothing replaces it.
    (S.DONE, I.START): (S.OPEN, A.START_NEXT),
    (S.DONE, I.UNSTARTED): (S.OPEN, A.START_UNSEEN),
    (S.DONE, I.BLOCK_START): (S.DONE, A.TAKE_STRAY),
    (S.DONE, I.BLOCK_DELTA): (S.DONE, A.TAKE_STRAY),
    (S.DONE, I.BLOCK_NOTE): (S.DONE, A.TAKE_STRAY),
    (S.DONE, I.BLOCK_STOP): (S.DONE, A.TAKE_STRAY),
    (S.DONE, I.FINISH): (S.DONE, A.IGNORE),
    (S.DONE, I.FINISH_ANSWERED): (S.DONE, A.IGNORE),
    (S.DONE, I.NO_FINISH): (S.DONE, A.IGNORE),
    (S.DONE, I.USAGE): (S.DONE, A.COUNT),
    (S.DONE, I.STOP): (S.DONE, A.IGNORE),
    (S.DONE, I.ABANDON): (S.CUT, A.ABANDON),
    (S.DONE, I.OWN): (S.DONE, A.CONFIRM),
    (S.DONE, I.FOREIGN): (S.PROMOTED, A.TAKE_NEXT),
    (S.DONE, I.RETRY): (S.DONE, A.SHOW),
    (S.DONE, I.ANSWER): (S.DONE, A.SHOW),
    (S.DONE, I.ASIDE): (S.DONE, A.SHOW),
    (S.DONE, I.LATE): (S.DONE, A.IGNORE),
    (S.DONE, I.RESULT): (S.CLOSED, A.SUM_UP),
    (S.DONE, I.RESULT_BEFORE): (S.DONE, A.REPORT),
    (S.DONE, I.END): (S.IDLE, A.END),
    (S.DONE, I.NEXT_RUN): (S.IDLE, A.START_RUN),
    # Promoted: no attempt, so block events and stops are another message's, and late.
    (S.PROMOTED, I.START): (S.OPEN, A.START_NEXT),
    (S.PROMOTED, I.UNSTARTED): (S.OPEN, A.START_UNSEEN),
    (S.PROMOTED, I.OWN): (S.PROMOTED, A.CONFIRM),
    (S.PROMOTED, I.FOREIGN): (S.PROMOTED, A.TAKE_NEXT),
    (S.PROMOTED, I.RETRY): (S.PROMOTED, A.SHOW),
    (S.PROMOTED, I.ASIDE): (S.PROMOTED, A.SHOW),
    (S.PROMOTED, I.LATE): (S.PROMOTED, A.IGNORE),
    (S.PROMOTED, I.RESULT): (S.CLOSED, A.SUM_UP),
    (S.PROMOTED, I.END): (S.IDLE, A.END),
    # Closed: only a complete message can still add to what is there.
    (S.CLOSED, I.START): (S.OPEN, A.START_NEXT),
    (S.CLOSED, I.UNSTARTED): (S.OPEN, A.START_UNSEEN),
    (S.CLOSED, I.OWN): (S.CLOSED, A.CONFIRM),
    (S.CLOSED, I.FOREIGN): (S.PROMOTED, A.TAKE_NEXT),
    (S.CLOSED, I.RETRY): (S.CLOSED, A.SHOW),
    (S.CLOSED, I.ANSWER): (S.CLOSED, A.SHOW),
    (S.CLOSED, I.ASIDE): (S.CLOSED, A.SHOW),
    (S.CLOSED, I.LATE): (S.CLOSED, A.IGNORE),
    (S.CLOSED, I.RESULT): (S.CLOSED, A.SUM_UP),
    (S.CLOSED, I.END): (S.IDLE, A.END),
}


def transition(state: State, given: Input) -> tuple[State, Action]:
    """The next state, and what to do on the way.

    Raises:
        StreamError: the input cannot come in this state; the decoder that made it is at fault or its source is.
    """
    found = TABLE.get((state, given))
    if found is None:
        raise StreamError("unexpected_event", f"{given.value!r} cannot come when the message is {state.value!r}")
    return found
