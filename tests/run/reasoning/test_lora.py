"""Adapters of low rank: only they are trained and saved, and merged weights compute what base and adapter compute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from sequence_cases import CPU, batches_of, log_probs_of, sequences, trainer_of

from scalewright.errors import ConfigError
from scalewright.run.device import join_group
from scalewright.run.reasoning.lora import merged_weights
from scalewright.run.reasoning.objectives import ResponseLoss
from scalewright.run.world import World
from scalewright.workload.reasoning.lora_settings import LoraSettings

LORA = LoraSettings(rank=3, alpha=6.0)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    join_group(World.from_environment({}, host="here"), CPU)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_only_adapters_are_trained_and_saved(name: str) -> None:
    trainer, plain = trainer_of(name, lora=LORA), trainer_of(name)
    batches = batches_of(sequences(8))
    before = {key: param.detach().clone() for key, param in trainer.session.split.all_parameters().items()}
    first = log_probs_of(trainer, batches)
    assert first[3] == pytest.approx(log_probs_of(plain, batches)[3], abs=1e-6)  # an adapter starts as nothing
    losses = [float(trainer.update(batches, ResponseLoss()).loss) for _ in range(6)]
    assert losses[-1] < 0.9 * losses[0]
    for key, param in trainer.session.split.all_parameters().items():
        is_adapter = key.endswith((".lora_a", ".lora_b"))
        assert param.requires_grad == is_adapter
        assert (param.grad is None) or is_adapter
        assert torch.equal(param, before[key]) != is_adapter
    saved = [key for key in trainer.tensors() if key.startswith("weight.")]
    assert saved
    assert all(key.endswith((".lora_a", ".lora_b")) for key in saved)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_merged_weights_compute_what_base_and_adapter_do(precision: str) -> None:
    trainer, plain = trainer_of(lora=LORA, precision=precision), trainer_of()
    batches = batches_of(sequences(8))
    base = {key: param.detach().clone() for key, param in trainer.session.split.all_parameters().items()}
    for _ in range(4):
        trainer.update(batches, ResponseLoss())
    plain.load_weights(trainer.named_weights(), where="merged")
    ours, merged = log_probs_of(trainer, batches), log_probs_of(plain, batches)
    assert ours[0] == pytest.approx(merged[0], abs=1e-4 if precision == "fp32" else 0.3)
    adapters = [(k.removeprefix("weight."), v) for k, v in trainer.tensors().items() if k.startswith("weight.")]
    whole = [(key, values) for key, values in base.items() if "lora" not in key]
    from_files = dict(merged_weights(whole, adapters, LORA, where="a checkpoint"))
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if precision == "fp32" else {"rtol": 0.02, "atol": 0.01}
    for key, values in trainer.named_weights():
        torch.testing.assert_close(from_files[key], values, **tolerance)


def test_bad_settings_and_foreign_adapters_are_refused() -> None:
    for options in ({"rank": 0}, {"alpha": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            LoraSettings(**options)
    weight = [("layers.0.attention.out.weight", torch.ones(4, 5))]
    stem = "layers.0.attention.out"
    good = [(f"{stem}.lora_a", torch.ones(3, 5)), (f"{stem}.lora_b", torch.ones(4, 3))]
    assert float(dict(merged_weights(weight, good, LORA, where="x"))[weight[0][0]][0, 0]) == 1 + 2 * 3
    with pytest.raises(ConfigError, match="does not fit"):
        list(merged_weights(weight, [good[0], (f"{stem}.lora_b", torch.ones(9, 3))], LORA, where="x"))
    with pytest.raises(ConfigError, match=r"layers\.7"):
        list(merged_weights(weight, [*good, ("layers.7.x.lora_a", torch.ones(3, 5))], LORA, where="x"))
    with pytest.raises(ConfigError, match="tp=2"):
        trainer_of(layout="tp=2", lora=LORA, large=False)
