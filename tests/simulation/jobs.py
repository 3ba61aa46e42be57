"""The kinds of work that schedules have."""

from __future__ import annotations

from simulation import counting, expired, recreated, sessions

JOBS = {
    "counting": counting.Job,
    "sessions": sessions.Job,
    "recreated": recreated.Job,
    "expired": expired.Job,
}


def job_of(settings):
    return JOBS[settings.job](settings)
