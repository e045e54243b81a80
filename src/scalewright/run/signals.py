"""What happens when a signal asks a run to stop: the run saves after the current step and is queued again.

The way of a signal, from the scheduler to the next attempt:

1. Slurm sends USR1 to the job script some time before the limit (`--signal`), or TERM on `scancel` and preemption. The
   script's traps are in `launch/script/parts.py` (`on_notice`, `on_term`); they pass the signal on to the ranks.
2. Without a job script, the launcher passes USR1, TERM and INT on: `launch/ranks/forwarding.py`, for ranks on this
   machine (`launch/ranks/local.py`) and in an allocation (`launch/ranks/allocation.py`).
3. In a rank, `StopSignals` below only sets a flag. `execute` in `run/__main__.py` opens it around the whole run.
4. After each step, the training loop (`run/language/train.py`, `run/vision/train.py`) calls `Saves.after_step` in
   `run/saves.py`. If any rank has the flag, all ranks save and the loop returns exit code 75 (`ExitCode.REQUEUE`).
5. `run/__main__.py` records the reason in the run directory. The script sees 75 and calls `scontrol requeue`, except
   after `scancel` (`requeue` in `launch/script/parts.py`). A job without a script is started again by hand.
6. The next attempt opens the same run directory and resumes from the checkpoint (`Saves.resume` in `run/saves.py`).
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class StopRequestedError(Exception):
    """A signal asked a benchmark to stop: nothing is written, it can be run again."""


class StopSignals:
    """While open, keeps the first USR1 (the scheduler's notice), TERM or INT. A second INT ends the process at once.

    Only the main thread may open it.
    """

    def __init__(self) -> None:
        self._requested: str | None = None
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> str | None:
        """Name of the first signal that arrived, such as SIGTERM; None: none arrived."""
        return self._requested

    def __enter__(self) -> StopSignals:
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._requested == "SIGINT" and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._requested is None:
            self._requested = signal.Signals(number).name
