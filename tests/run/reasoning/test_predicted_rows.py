"""The prediction of a stage counts the same micro-batches that the trainer makes."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from sequence_cases import CPU, SHAPES

from scalewright.launch.prepare.reason_outlook import SequenceLengths, update_load
from scalewright.run.reasoning.batches import TokenSequence, pack_sequences
from scalewright.workload.layout import parse_layout
from scalewright.workload.reasoning.stage_run import ReasonRun, SftSettings


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_the_prediction_counts_the_micro_batches_that_are_trained_on(packing: Literal["packed", "padded"]) -> None:
    """Rows are shared out by one module: micro-batches and tokens with their padding agree."""
    rng = random.Random(0)
    lengths = [(rng.randint(2, 8), rng.randint(2, 24)) for _ in range(40)]
    sequences = [TokenSequence((1,) * prompt, (2,) * reply) for prompt, reply in lengths]
    batches = pack_sequences(sequences, row_tokens=32, num_rows=4, packing=packing, device=CPU)
    run = ReasonRun(
        stage="sft", model_id="tiny", shape=SHAPES["llama"].model_copy(update={"seq": 32}), settings=SftSettings(),
        layout=parse_layout("dp=1,mbs=4,gbs=40"), device="cpu",
    )  # fmt: skip
    sample = SequenceLengths(prompts=tuple(p for p, _ in lengths), answers=tuple(a for _, a in lengths))
    update = update_load(run, sample, packs=packing == "packed")
    assert update.num_micro_batches == len(batches)
    assert update.num_tokens == sum(batch.tokens_BL.numel() for batch in batches)
    assert update.scored_frac * update.num_tokens == pytest.approx(sum(batch.slots_T.numel() for batch in batches))
