"""The progress of a pipeline: a bar for the phase that runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import TextColumn, TimeElapsedColumn

from scalewright.observe.findings.words import counted
from scalewright.report.live_bar import LiveBar

PHASE_WORDS = {
    "clean": "reading and filtering", "exact": "equal texts", "url": "equal addresses", "near": "near duplicates",
    "verify": "comparing near duplicates", "spans": "repeated spans",
    "cuts": "comparing repeated spans", "finish": "tokenising",
    "write": "writing shards",
}  # fmt: skip


class PhaseBar(LiveBar):
    """Names the phase, counts its tasks and the time. Without a terminal each phase is one line."""

    def __init__(self) -> None:
        super().__init__(TextColumn("data"), TimeElapsedColumn(), total=1)
        self._phase = ""

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)

    def show(self, phase: str, num_done: int, num_tasks: int) -> None:
        words = PHASE_WORDS.get(phase)
        if words is None:
            return
        if phase != self._phase:
            self._phase = phase
            if not self._live:
                before = f", {num_done:,} done before" if num_done else ""
                self.say(f"{words}: {counted(num_tasks, 'task')}{before}")
        self._bar.update(
            self._task, total=max(num_tasks, 1), completed=num_done, description=f"{words} {num_done}/{num_tasks}"
        )  # fmt: skip
