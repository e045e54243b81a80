"""Faults after which a run goes on, and what it learns or reports is wrong; and memory that grows."""

from __future__ import annotations

from scalewright.lab.faults.fault import Fault, Injection, Variation
from scalewright.lab.faults.injections import beside, interposed
from scalewright.lab.faults.recorded import slowed_device_samples
from scalewright.lab.faults.trial import Trial
from scalewright.lab.faults.workloads import language, sft, vision

NAN_LOSS = Fault(
    kind="nan-loss",
    title="the loss becomes NaN",
    effect="doubtful",
    rules=("loss-nan",),
    how="a learning rate that overflows the weights",
    variations=tuple(
        Variation(words=f"learning rate {rate}, {ranks} ranks", command=sft("--learning-rate", rate, ranks=ranks))
        for rate, ranks in (("1e20", 1), ("1e30", 2), ("1e36", 1))
    ),
)

DIVERGING_LOSS = Fault(
    kind="diverging-loss",
    title="the loss grows",
    effect="doubtful",
    rules=("loss-diverging", "loss-spike"),
    how="a learning rate that is a thousand times too high",
    variations=tuple(
        Variation(
            words=f"learning rate {rate}, {ranks} ranks", command=sft("--learning-rate", rate, ranks=ranks, steps=80)
        )
        for rate, ranks in (("3", 1), ("2.5", 1), ("3", 2))
    ),
)

FROZEN_LOSS = Fault(
    kind="frozen-loss",
    title="the loss does not change",
    effect="doubtful",
    rules=("loss-frozen",),
    how="nothing is left to learn, or updates that round to nothing",
    variations=(
        Variation(
            words="1 trace again and again, learning rate 1e-30",
            command=sft("--learning-rate", "1e-30", steps=60, batch=1, traces=1),
        ),
        Variation(
            words="1 trace on 2 ranks, learning rate 1e-30",
            command=sft("--learning-rate", "1e-30", steps=60, batch=2, traces=1, ranks=2),
        ),
        Variation(
            words="4 traces in every batch, learning rate 1e-30",
            command=sft("--learning-rate", "1e-30", steps=60, batch=4, traces=4),
        ),
    ),
)

WRONG_FLOP = Fault(
    kind="wrong-flop-report",
    title="the reported FLOP/s are impossible",
    effect="doubtful",
    rules=("impossible-flop",),
    how="the clock that times the steps runs slow",
    variations=tuple(
        Variation(words=words, command=command, inject=interposed(FAULT_CLOCK=factor))
        for words, command, factor in (
            ("the clock of the ranks runs 30 times slower", language(), "30"),
            ("100 times slower, 1 rank", language(ranks=1), "100"),
            ("50 times slower, a residual network", vision(steps=20), "50"),
        )
    ),
)

MEMORY_GROWING = Fault(
    kind="memory-growing",
    title="the memory of a rank grows from step to step",
    effect="doubtful",
    rules=("memory-growing",),
    how="a library below the ranks that loses memory",
    variations=tuple(
        Variation(words=words, command=command, inject=interposed(FAULT_LEAK_BYTES_PER_S=rate))
        for words, command, rate in (
            ("100 MB/s on each of 2 ranks", language(steps=120), "1e8"),
            ("60 MB/s, 1 rank", language(steps=160, ranks=1), "6e7"),
            ("150 MB/s, a residual network", vision(steps=60), "1.5e8"),
        )
    ),
)


def _clocks(*, clock_frac: float, reason: str) -> Injection:
    def inject(trial: Trial) -> None:
        beside("nvidia-smi.csv", slowed_device_samples(clock_frac=clock_frac, reason=reason))(trial)

    return inject


THROTTLED = Fault(
    kind="throttled-clocks",
    title="heat or a power limit reduces the clock of a GPU",
    effect="doubtful",
    rules=("throttled-clocks",),
    how="samples of nvidia-smi, recorded elsewhere, lie beside a run on CPUs",
    is_replayed=True,
    variations=(
        Variation(
            words="software thermal slowdown to 60 %", command=language(ranks=1),
            inject=_clocks(clock_frac=0.6, reason="sw_thermal"),
        ),
        Variation(
            words="hardware thermal slowdown to 40 %", command=language(ranks=1),
            inject=_clocks(clock_frac=0.4, reason="hw_thermal"),
        ),
        Variation(
            words="power brake to 50 %", command=vision(steps=10), inject=_clocks(clock_frac=0.5, reason="power_brake"),
        ),
    ),
)  # fmt: skip

FAULTS = (NAN_LOSS, DIVERGING_LOSS, FROZEN_LOSS, WRONG_FLOP, MEMORY_GROWING, THROTTLED)
