"""The samples of a short run as a file, so that every engine sees those of our own trainer in the same order."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from scalewright.data.tokens.synthetic import samples_named
from scalewright.records.documents import write_bytes
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.engine_run import EngineRun

NAME = "engine/samples.npy"
MOST_TOKENS = 2**26
"""Longer runs read their data themselves, in an order of their own."""


def write_samples(directory: RunDirectory, run: EngineRun) -> Path | None:
    """Write the windows of all steps; None for a run that is too long, and for data that are no tokens."""
    num_samples = run.steps * int(run.layout.gbs)
    path = directory.path / NAME
    if run.task != "pretrain" or num_samples * run.shape.seq > MOST_TOKENS:
        return None
    samples = samples_named(run.data, seq_len=run.shape.seq, seed=run.seed, vocab=run.shape.vocab)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.save(content, samples.read(np.arange(num_samples)).astype(np.uint32))
    write_bytes(path, content.getvalue())
    return path
