"""The progress of a conversion: samples written."""

from __future__ import annotations

from typing import Self

from rich.progress import TextColumn

from scalewright.report.live_bar import LiveBar


class ConversionBar(LiveBar):
    """Counts samples. Without a terminal nothing is printed: a conversion has one result."""

    def __init__(self, to: str) -> None:
        super().__init__(TextColumn(f"writing {to}"), total=1)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def show(self, done: int, total: int) -> None:
        self._bar.update(self._task, total=max(total, 1), completed=done, description=f"{done:,} of {total:,}")
