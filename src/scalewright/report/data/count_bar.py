"""Progress that counts: samples written, files looked at."""

from __future__ import annotations

from typing import Self

from rich.progress import TextColumn

from scalewright.report.live_bar import LiveBar


class CountBar(LiveBar):
    """Counts under a title. Without a terminal nothing is printed: such work has one result."""

    def __init__(self, title: str) -> None:
        super().__init__(TextColumn(title), total=1)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, total=max(total, 1), completed=done, description=f"{done:,} of {total:,}")
