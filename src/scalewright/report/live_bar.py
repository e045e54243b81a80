"""A bar on stderr that moves on a terminal and stays away elsewhere. Every kind of progress is one."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn


class LiveBar:
    """Title, bar and a description. Without a terminal nothing is drawn, and `say` writes plain lines."""

    def __init__(self, *before_bar: ProgressColumn, total: float) -> None:
        console = Console(stderr=True)
        self._live = console.is_terminal
        self._bar = Progress(
            *before_bar, BarColumn(bar_width=20), TextColumn("{task.description}"),
            console=console, transient=True, disable=not self._live,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        if self._live:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(f"{text}\n")
