"""What a person sees meanwhile: on a terminal one line that changes, elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
import time

import click

_ON_TERMINAL_SECONDS = 0.1
_ELSEWHERE_SECONDS = 2.0
_BAR = 24
_LABEL = 11


class Progress:
    """Words for people, on stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = time.monotonic()
        self._open = False
        # None: click takes colour out where stderr is no terminal. https://no-color.org
        self._color = False if os.environ.get("NO_COLOR") else None

    def stage(self, label: str, text: str) -> None:
        """A stage is done: a line that stays."""
        self.clear()
        self._last = time.monotonic()
        click.echo(f"  {label:<{_LABEL}}{text}", err=True)

    def update(self, label: str, text: str, done: int | None = None, of: int = 0) -> None:
        """How far a stage is, shown only so often; with ``of`` a bar of ``done`` parts of it."""
        now = time.monotonic()
        if now - self._last < (_ON_TERMINAL_SECONDS if self._live else _ELSEWHERE_SECONDS):
            return
        self._last = now
        bar = "" if done is None else f"{'=' * (_BAR * done // max(1, of)):.<{_BAR}} "
        if self._live:
            click.echo(f"\r\033[K  {label:<{_LABEL}}{bar}{text}", nl=False, err=True)
            self._open = True
        else:
            click.echo(f"  {label:<{_LABEL}}{text}", err=True)

    def clear(self) -> None:
        """Take the changing line off the screen."""
        if self._open:
            click.echo("\r\033[K", nl=False, err=True)
            self._open = False

    def lines(self, lines: list[str]) -> None:
        """Lines that stay."""
        self.clear()
        for line in lines:
            click.echo(line, err=True, color=self._color)
