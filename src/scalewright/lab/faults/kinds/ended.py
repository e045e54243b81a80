"""Faults that end a run."""

from __future__ import annotations

import signal

from scalewright import units
from scalewright.lab.faults.fault import Fault, Variation, both
from scalewright.lab.faults.injections import (
    address_space,
    interposed,
    limit_memory,
    memory_of_run,
    send,
    small_disk,
    variables,
)
from scalewright.lab.faults.trial import Running, Trial
from scalewright.lab.faults.workloads import TINY_MODEL, cut_tokens, damaged_images, images, language, sft, vision

LONG = 4000
"""Steps of a run that is ended before it has done them."""
WATCHED = variables(SCALEWRIGHT_WATCHDOG_S="4", SCALEWRIGHT_WATCHDOG_FACTOR="20")
"""The limit without a step, shortened so that a hang is noticed in seconds."""

KILLED_RANK = Fault(
    kind="killed-rank",
    title="a rank is killed",
    effect="ended",
    rules=("rank-killed",),
    how="SIGKILL, SIGSEGV or SIGABRT after some steps",
    variations=(
        Variation(words="rank 1 of 2, SIGKILL", command=language(steps=LONG), inject=send(signal.SIGKILL, rank=1)),
        Variation(
            words="rank 2 of 4, SIGSEGV", command=language(steps=LONG, ranks=4, model=TINY_MODEL),
            inject=send(signal.SIGSEGV, rank=2),
        ),
        Variation(
            words="rank 0 of a stage of fine-tuning, SIGABRT", command=sft(steps=LONG, ranks=2),
            inject=send(signal.SIGABRT, rank=0),
        ),
    ),
)  # fmt: skip

STOPPED_RANK = Fault(
    kind="stopped-rank",
    title="a rank stands still, and the others wait for it",
    effect="ended",
    rules=("hang",),
    how="SIGSTOP after some steps",
    variations=(
        Variation(
            words="rank 1 of 2", command=language(steps=LONG), inject=both(WATCHED, send(signal.SIGSTOP, rank=1)),
        ),
        Variation(
            words="rank 0 of 2", command=language(steps=LONG), inject=both(WATCHED, send(signal.SIGSTOP, rank=0)),
        ),
        Variation(
            words="rank 2 of 3", command=language(steps=LONG, ranks=3, model=TINY_MODEL),
            inject=both(WATCHED, send(signal.SIGSTOP, rank=2)),
        ),
        Variation(
            words="rank 1 of 2 of a residual network", command=vision(steps=1000, ranks=2),
            inject=both(WATCHED, send(signal.SIGSTOP, rank=1)),
        ),
    ),
)  # fmt: skip

MEMORY_CAP = Fault(
    kind="memory-cap",
    title="the memory limit of a job or a rank is too low",
    effect="ended",
    rules=("cgroup-memory-kill", "host-out-of-memory"),
    how="the memory limit of a control group, or RLIMIT_AS",
    variations=(
        Variation(
            words="a job of 1 rank may use 150 MB", command=language(steps=20, ranks=1),
            inject=memory_of_run(150_000_000),
        ),
        Variation(
            words="rank 1 of 2 may grow by 30 MB and leaks", command=language(steps=LONG),
            inject=both(interposed(FAULT_LEAK_BYTES_PER_S="2e7"), limit_memory(1, headroom_bytes=30_000_000)),
        ),
        Variation(
            words="each process may map 4 GB, batches of 512 samples",
            command=language(steps=10, ranks=1, mbs=512, model="layers=4,hidden=256,heads=4,seq=128,vocab=1024"),
            inject=address_space(4_000_000_000),
        ),
    ),
)  # fmt: skip

FULL_DISK = Fault(
    kind="full-disk",
    title="the disk of the run directory is full",
    effect="ended",
    rules=("disk-full",),
    how="a small file system in memory",
    variations=tuple(
        Variation(
            words=f"{units.format(size, units.BYTES)}, checkpoints {mode}", inject=small_disk(size),
            command=language(
                "--checkpoint", mode, "--checkpoint-every", "5", "--keep", "100", steps=LONG, ranks=ranks,
                model=TINY_MODEL,
            ),
        )
        for size, mode, ranks in ((8_000_000, "sync", 1), (6_000_000, "async", 1), (12_000_000, "sync", 2))
    ),
)  # fmt: skip

PREEMPTED = Fault(
    kind="preemption-signal",
    title="a scheduler asks the run to stop",
    effect="ended",
    rules=("stopped-by-signal", "preempted"),
    how="SIGTERM to the launcher, as a preemption without a job script sends it",
    variations=(
        Variation(words="2 ranks", command=language(steps=LONG), inject=send(signal.SIGTERM)),
        Variation(words="fine-tuning", command=sft(steps=LONG), inject=send(signal.SIGTERM)),
        Variation(words="a residual network", command=vision(steps=1000), inject=send(signal.SIGTERM)),
    ),
)  # fmt: skip

LIMIT_NOTICE = Fault(
    kind="limit-notice",
    title="the notice before a time limit stops the run",
    effect="ended",
    rules=("stopped-by-signal", "time-limit"),
    how="SIGUSR1 to the launcher, as `--signal=USR1@60` sends it",
    variations=(
        Variation(words="2 ranks", command=language(steps=LONG), inject=send(signal.SIGUSR1)),
        Variation(words="1 rank", command=language(steps=LONG, ranks=1), inject=send(signal.SIGUSR1, after_step=8)),
        Variation(words="fine-tuning", command=sft(steps=LONG), inject=send(signal.SIGUSR1)),
    ),
)  # fmt: skip


def _remove_images(trial: Trial) -> None:
    """Files of the data set vanish while the run reads them, as a purge of a scratch disk does."""

    def act(running: Running) -> None:
        if running.wait_for_step(2):
            for path in (trial.data / "purged" / "train").glob("*/*.jpg"):
                path.unlink()

    trial.acts.append(act)


MISSING_FILE = Fault(
    kind="missing-file",
    title="a file is not there",
    effect="ended",
    rules=("missing-file",),
    how="a wrong path, or files that are removed during the run",
    variations=(
        Variation(words="the data set does not exist", command=language("--data", "{data}/no-such-tokens.npy")),
        Variation(
            words="the checkpoint to start from does not exist",
            command=language("--start-from", "{data}/runs/first/checkpoints/step-00000100", ranks=1),
        ),
        Variation(
            words="images are removed while the run reads them", command=vision(data="{data}/purged", steps=200),
            prepare=damaged_images("purged", damage="cut", every=10**6), inject=_remove_images,
        ),
    ),
)  # fmt: skip

UNREADABLE = Fault(
    kind="unreadable-data",
    title="the data set is damaged",
    effect="ended",
    rules=("unreadable-data",),
    how="files that are cut, or whose disk gives errors",
    variations=(
        Variation(
            words="a file of tokens is cut", command=language("--data", "{data}/cut.npy", ranks=1),
            prepare=cut_tokens("cut.npy", keep_bytes=90_000),
        ),
        Variation(
            words="every 40th image is cut", command=vision(data="{data}/damaged", steps=20),
            prepare=damaged_images("damaged", damage="cut", every=40),
        ),
        Variation(
            words="the disk gives I/O errors after 60 reads", command=vision(data="{data}/folder", steps=20),
            prepare=images("folder"), inject=interposed(FAULT_FILES="{data}/folder/train", FAULT_FAILS_AFTER="60"),
        ),
    ),
)  # fmt: skip

WRONG_KEY = Fault(
    kind="wrong-key",
    title="a configuration has a key that does not exist",
    effect="ended",
    rules=("wrong-configuration-key",),
    how="options with a wrong name or value",
    variations=(
        Variation(words="mbz instead of mbs in the layout", command=language(layout="dp=2,mbz=4,gbs=8")),
        Variation(
            words="hiden instead of hidden in the model", command=language(model="layers=2,hiden=64,heads=2,seq=32"),
        ),
        Variation(words="a precision that does not exist", command=language("--precision", "fp7")),
    ),
)  # fmt: skip

FAULTS = (
    KILLED_RANK, STOPPED_RANK, MEMORY_CAP, FULL_DISK, PREEMPTED, LIMIT_NOTICE, MISSING_FILE, UNREADABLE, WRONG_KEY,
)  # fmt: skip
