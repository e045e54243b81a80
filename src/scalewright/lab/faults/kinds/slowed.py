"""Faults of processors, network and batch that make a run slower."""

from __future__ import annotations

from scalewright.lab.faults.fault import Fault, Variation
from scalewright.lab.faults.injections import (
    bound_from_start,
    busy_neighbour,
    cores,
    duty_cycle,
    limit_cpu,
    linked,
    variables,
)
from scalewright.lab.faults.workloads import TINY_MODEL, generate, language, sft, vision

SLOWED_RANK = Fault(
    kind="slowed-rank",
    title="one rank computes slower than the others",
    effect="slowed",
    rules=("straggler-rank",),
    how="the CPU quota of a control group, or SIGSTOP and SIGCONT in turns",
    variations=(
        Variation(words="rank 1 of 2 gets 35 % of a core", command=language(), inject=limit_cpu(1, cores=0.35)),
        Variation(words="rank 0 of 2 gets 50 % of a core", command=language(), inject=limit_cpu(0, cores=0.5)),
        Variation(
            words="rank 1 of 2 stands still for 30 of every 50 ms",
            command=language(steps=60), inject=duty_cycle(1, stopped_s=0.03, runs_s=0.02),
        ),
        Variation(
            words="rank 1 of 2 of a residual network gets 40 % of a core",
            command=vision(ranks=2, steps=16), inject=limit_cpu(1, cores=0.4),
        ),
    ),
)  # fmt: skip

SHAPED_LINK = Fault(
    kind="shaped-link",
    title="the network between ranks is slow",
    effect="slowed",
    rules=("communication-bound",),
    how="each rank in a network namespace whose link has a rate limit",
    variations=(
        Variation(
            words="2 ranks over 100 Mbit/s", command=language(steps=16), inject=linked(2, 12.5e6),
            reference_inject=linked(2, None),
        ),
        Variation(
            words="2 ranks over 400 Mbit/s", command=language(steps=20), inject=linked(2, 50e6),
            reference_inject=linked(2, None),
        ),
        Variation(
            words="2 ranks with zero=3 over 200 Mbit/s", command=language(steps=14, layout="dp=2,mbs=4,gbs=8,zero=3"),
            inject=linked(2, 25e6), reference_inject=linked(2, None),
        ),
    ),
)  # fmt: skip

BAD_BINDING = Fault(
    kind="bad-binding",
    title="all ranks are bound to the same core",
    effect="slowed",
    rules=("wrong-binding",),
    how="taskset before the start, or the affinity of running ranks",
    variations=(
        Variation(words="2 ranks on core 0 from the start", command=language(), inject=bound_from_start(0)),
        Variation(words="2 ranks moved to core 1 while they run", command=language(), inject=cores(1)),
        Variation(
            words="2 ranks of a residual network on core 0", command=vision(ranks=2, steps=16),
            inject=bound_from_start(0),
        ),
    ),
)  # fmt: skip

THREADS = Fault(
    kind="oversubscribed-threads",
    title="ranks start more threads than there are cores",
    effect="slowed",
    rules=("oversubscribed-threads",),
    how="OMP_NUM_THREADS",
    variations=(
        Variation(words="2 ranks with 8 threads each", command=language(), inject=variables(OMP_NUM_THREADS="8")),
        Variation(
            words="4 ranks with 4 threads each", command=language(ranks=4, steps=30, mbs=2),
            inject=variables(OMP_NUM_THREADS="4"),
        ),
        Variation(
            words="2 ranks of a residual network with 16 threads each", command=vision(ranks=2, steps=16),
            inject=variables(OMP_NUM_THREADS="16"),
        ),
    ),
)  # fmt: skip

TINY_MICRO_BATCH = Fault(
    kind="tiny-micro-batch",
    title="micro-batches are too small to keep a device busy",
    effect="slowed",
    rules=("small-micro-batch", "launch-bound"),
    how="mbs=1 with many micro-batches; the reference has the same batch in one",
    variations=(
        Variation(
            words="32 micro-batches of 1 sample instead of 1 of 32",
            command=language(ranks=1, mbs=1, gbs=32, model=TINY_MODEL, steps=40),
            reference=language(ranks=1, mbs=32, gbs=32, model=TINY_MODEL, steps=40),
        ),
        Variation(
            words="2 ranks, 16 micro-batches of 1 instead of 1 of 16",
            command=language(ranks=2, mbs=1, gbs=32, model=TINY_MODEL, steps=40),
            reference=language(ranks=2, mbs=16, gbs=32, model=TINY_MODEL, steps=40),
        ),
        Variation(
            words="64 micro-batches of 1 sample instead of 1 of 64",
            command=language(ranks=1, mbs=1, gbs=64, model=TINY_MODEL, steps=30),
            reference=language(ranks=1, mbs=64, gbs=64, model=TINY_MODEL, steps=30),
        ),
    ),
)  # fmt: skip

PERIODIC_STALL = Fault(
    kind="periodic-stall",
    title="every rank stands still at regular times",
    effect="slowed",
    rules=("periodic-stall",),
    how="SIGSTOP and SIGCONT to all ranks",
    variations=(
        Variation(words="0.6 s every 1.8 s", command=language(steps=120), inject=duty_cycle(stopped_s=0.6, runs_s=1.2)),
        Variation(words="1 s every 3 s", command=language(steps=240), inject=duty_cycle(stopped_s=1.0, runs_s=2.0)),
        Variation(
            words="0.5 s every 1.5 s, one rank", command=sft(steps=240), inject=duty_cycle(stopped_s=0.5, runs_s=1.0),
        ),
    ),
)  # fmt: skip

BUSY_MACHINE = Fault(
    kind="busy-machine",
    title="other work computes on the same cores",
    effect="slowed",
    rules=("busy-machine",),
    how="processes that only compute, beside the run",
    variations=(
        Variation(words="2 other processes on 2 cores", command=language(), inject=busy_neighbour(2)),
        Variation(words="4 other processes on 2 cores", command=language(), inject=busy_neighbour(4)),
        Variation(words="4 others beside a residual network", command=vision(steps=20), inject=busy_neighbour(4)),
    ),
)  # fmt: skip

LONG_TAIL = Fault(
    kind="long-tailed-answers",
    title="a few long answers keep all ranks waiting",
    effect="slowed",
    rules=("long-tail",),
    how="lengths of answers with a heavy tail; the reference has the same mean",
    variations=(
        Variation(
            words="Pareto lengths up to 400 tokens, 48 answers",
            command=generate(answers="pareto:mean=24,alpha=1.2,max=400"), reference=generate(answers="24"),
        ),
        Variation(
            words="lognormal lengths of spread 2, 64 answers",
            command=generate(answers="lognormal:mean=24,cv=2.5", num=64), reference=generate(answers="24", num=64),
        ),
        Variation(
            words="Pareto lengths on 2 ranks", command=generate(answers="pareto:mean=24,alpha=1.1,max=400", ranks=2),
            reference=generate(answers="24", ranks=2),
        ),
    ),
)  # fmt: skip

FAULTS = (
    SLOWED_RANK, SHAPED_LINK, BAD_BINDING, THREADS, TINY_MICRO_BATCH, PERIODIC_STALL, BUSY_MACHINE, LONG_TAIL,
)  # fmt: skip
