"""Run a fault: the run with it, and for faults that slow a run the same run without it, to measure what it costs."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from scalewright.errors import EnvironmentFailedError
from scalewright.lab.faults.fault import Control, Fault, Injection, nothing
from scalewright.lab.faults.leftovers import Leftovers, sweep
from scalewright.lab.faults.trial import Trial, TrialEnd, prepared_folder, run_trial
from scalewright.records import metric_names as names
from scalewright.records.answers import read_answers
from scalewright.records.documents import document, write_document
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory

EVIDENCE, REFERENCE, DATA = "evidence", "reference", "data"
"""Folders of a fault's run: what `explain` reads, the run without the fault, and what both read."""
LEAST_STEPS = 3
"""With fewer, no time of a step is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRun:
    """A fault that was injected, and what is known to be true of the run."""

    fault: Fault
    number: int
    folder: Path
    outcome: TrialEnd
    time_s: float | None
    """Of a step, from the end of one to the end of the next, mean; None: it made too few."""
    reference_s: float | None
    """The same without the fault; None: not measured."""

    @property
    def evidence(self) -> Path:
        return self.folder / EVIDENCE

    @property
    def rules(self) -> tuple[str, ...]:
        return self.fault.variation(self.number).rules or self.fault.rules

    @property
    def gain_frac(self) -> float | None:
        """Share of the step's time that removing the fault saved; None: not measured."""
        if self.time_s is None or self.reference_s is None:
            return None
        return 1.0 - self.reference_s / self.time_s

    def document(self) -> dict[str, Any]:
        """The ground truth. It is written beside the evidence, never into it."""
        variation = self.fault.variation(self.number)
        return document(
            "fault",
            {
                "kind": self.fault.kind, "variation": self.number, "words": variation.words,
                "effect": self.fault.effect, "rules": list(self.rules), "also": list(self.fault.also),
                "replayed": self.fault.is_replayed, "exit_code": self.outcome.exit_code,
                "took_s": self.outcome.took_s, "timed_out": self.outcome.timed_out, "step_time_s": self.time_s,
                "reference_step_time_s": self.reference_s, "measured_gain_frac": self.gain_frac,
            },
        )  # fmt: skip


def run_fault(fault: Fault, number: int, folder: Path, *, data: Path | None = None, measures: bool = True) -> FaultRun:
    """Inject a variation of a fault. Without `measures`, the run without the fault is left out."""
    variation = fault.variation(number)
    with prepared_folder(folder):
        data = data or folder / DATA
        outcome = _run(folder / EVIDENCE, data, variation.command, variation.prepare, variation.inject)
        reference_s = None
        if fault.slows and measures:
            command = variation.command if variation.reference is None else variation.reference
            reference = _run(folder / REFERENCE, data, command, variation.prepare, variation.reference_inject)
            if reference.exit_code:
                raise EnvironmentFailedError(
                    f"{folder / REFERENCE}: the run without the fault ended with {reference.exit_code}: "
                    "see console.log there"
                )
            reference_s = mean_step_s(folder / REFERENCE / "run", num_warm_steps=fault.num_warm_steps)
        run = FaultRun(
            fault=fault, number=number, folder=folder, outcome=outcome, reference_s=reference_s,
            time_s=mean_step_s(folder / EVIDENCE / "run", num_warm_steps=fault.num_warm_steps) if fault.slows else None,
        )  # fmt: skip
        write_document(folder / "fault.json", run.document())
    return run


def run_control(control: Control, folder: Path, *, data: Path) -> TrialEnd:
    """A healthy run."""
    with prepared_folder(folder):
        return _run(folder / EVIDENCE, data, control.command, control.prepare, control.inject)


def _run(folder: Path, data: Path, command: tuple[str, ...], prepare: Injection, inject: Injection) -> TrialEnd:
    sweep()
    with Leftovers() as leftovers, _signals_end_it():
        trial = Trial(folder=folder.resolve(), data=data.resolve(), leftovers=leftovers, command=list(command))
        trial.folder.mkdir(parents=True, exist_ok=True)
        trial.data.mkdir(parents=True, exist_ok=True)
        if prepare is not nothing:
            prepare(trial)
        inject(trial)
        return run_trial(trial)


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """TERM ends the laboratory as Ctrl-C does, so that everything is removed."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def mean_step_s(run_dir: Path, *, num_warm_steps: int = 3) -> float | None:
    """Time from the end of a step to the end of the next, mean: with checkpoints and everything between steps.

    It comes from when the events were written, not from what the run says a step took; of a run that answers requests,
    it is the time of a token.
    """
    directory = RunDirectory(run_dir)
    if directory.all_rank_answers():
        return _token_s(directory)
    if not directory.rank_events(0).exists():
        return None
    events = list(read_events(directory.rank_events(0)))
    ends = {e.step: e.time for e in events if e.name == names.STEP_TIME}
    profiled = {e.step for e in events if e.name == names.COMPUTE_TIME}
    counted = [step for step in ends if step >= num_warm_steps and step - 1 in ends and step not in profiled]
    spans = [ends[step] - ends[step - 1] for step in counted]
    if num_warm_steps == 0:  # nothing ended before the first step: what it says itself
        spans += [e.value for e in events if e.name == names.STEP_TIME and e.step == 0 and e.value is not None]
    return statistics.fmean(spans) if len(spans) >= LEAST_STEPS else None


def _token_s(directory: RunDirectory) -> float | None:
    """Time of all answers over their tokens, from the first request to the last token."""
    answers = read_answers(directory.all_rank_answers())
    num_tokens = sum(one.num_tokens for one in answers)
    if not num_tokens:
        return None
    return (max(one.end_s for one in answers) - min(one.sent_s for one in answers)) / num_tokens
