"""Train with torchtitan 0.2: the model and the samples of the run's file, torchtitan's own trainer and TOML.

    python train_torchtitan.py --config engine/engine.json --job.config_file engine/torchtitan.toml ...

On a CPU, torchtitan 0.2.2 needs what `for_cpu` replaces. Everything else is torchtitan's.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from engine_setup import Notice, TokenWindows, check_weights, fail, leave, read_config
from step_traces import StepTraces

FLAVOR = "scalewright"


def for_cpu() -> None:
    """Before torchtitan is imported: name the device, and give torch.cpu the functions that torch.cuda has."""
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    # Its only use of Triton: kernels for experts, which a Llama has not.
    kernels = types.ModuleType("torchtitan.models.moe.kernels")
    kernels.generate_permute_indices = None
    sys.modules.setdefault(kernels.__name__, kernels)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    replaced = {
        "get_device_name": lambda *_: "CPU",
        "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=memory_bytes, name="CPU"),
        "memory_stats": lambda *_: _memory(),
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda *_: None,
        "manual_seed": torch.manual_seed,
    }
    for name, function in replaced.items():
        setattr(torch.cpu, name, function)


def _memory() -> dict[str, int]:
    """Peak of the process: a CPU has no allocator that counts."""
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # Linux counts it in KiB
    return {"active_bytes.all.peak": peak_bytes, "reserved_bytes.all.peak": peak_bytes,
            "num_alloc_retries": 0, "num_ooms": 0}  # fmt: skip


class SampleLoader:
    """torchtitan's interface of a data loader: micro-batches of one copy of the model, and a state to resume from."""

    def __init__(self, samples: TokenWindows, dp_rank: int) -> None:
        self._samples, self._dp_rank, self._num_taken = samples, dp_rank, 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        num_micro = self._samples.gbs // (self._samples.dp * self._samples.mbs)
        while True:
            step, micro = divmod(self._num_taken, num_micro)
            window = torch.from_numpy(self._samples.micro_batch(step, micro, self._dp_rank))
            self._num_taken += 1
            yield {"input": window[:, :-1]}, window[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"num_taken": self._num_taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_taken = int(state.get("num_taken", 0))


def model_args(config: dict[str, Any]) -> Any:
    """The run's model as a flavor of torchtitan's Llama 3."""
    from torchtitan.models.llama3.model.args import RoPEScalingArgs, TransformerModelArgs

    model = config["model"]
    if model["model_type"] not in ("llama", "mistral") or model.get("tie_word_embeddings"):
        fail(f"torchtitan trains Llama 3 here, and the model is {model['model_type']}: choose a Llama shape")
    hidden, width = int(model["hidden_size"]), int(model["intermediate_size"])
    usual = int(8 * hidden / 3)
    scaling = model.get("rope_scaling") or {}
    known = {
        "scaling_factor": float(scaling.get("factor", 1.0)),
        "low_freq_factor": float(scaling.get("low_freq_factor", 1.0)),
        "high_freq_factor": float(scaling.get("high_freq_factor", 4.0)),
        "original_max_position_embeddings": int(scaling.get("original_max_position_embeddings", 8192)),
    }
    return TransformerModelArgs(
        dim=hidden, n_layers=int(model["num_hidden_layers"]), n_heads=int(model["num_attention_heads"]),
        n_kv_heads=int(model["num_key_value_heads"]), vocab_size=int(model["vocab_size"]),
        # The width is rounded up to a multiple of itself: any width can be had.
        multiple_of=width, ffn_dim_multiplier=None if usual <= width else 0.99 * width / usual,
        norm_eps=float(model["rms_norm_eps"]), rope_theta=float(model["rope_theta"]),
        rope_scaling_args=RoPEScalingArgs(**known), max_seq_len=int(config["sequence"]),
    )  # fmt: skip


def register(config: dict[str, Any]) -> None:
    """Make `llama3` with flavor `scalewright` this run's model, fed with this run's samples."""
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.models.llama3 import get_train_spec
    from torchtitan.protocols.train_spec import register_train_spec

    spec, samples = get_train_spec(), TokenWindows(config)
    args = model_args(config)
    on_cpu = config["device"] == "cpu"

    def loader(*, dp_world_size: int, dp_rank: int, **_: Any) -> SampleLoader:
        if dp_world_size != samples.dp:
            fail(f"torchtitan splits the batch {dp_world_size} ways, the layout says dp={samples.dp}; render it again")
        return SampleLoader(samples, dp_rank)

    def parallelize(model: Any, *rest: Any, **more: Any) -> Any:
        split = spec.parallelize_fn(model, *rest, **more)
        for module in split.modules():
            if on_cpu and isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # Gloo has no scaled sum
        return split

    register_train_spec(
        "llama3",
        dataclasses.replace(
            spec, model_args={**spec.model_args, FLAVOR: args}, parallelize_fn=parallelize, build_dataloader_fn=loader,
            build_tokenizer_fn=None,
        ),
    )  # fmt: skip


def main() -> None:
    config = read_config()
    if config["load"]:
        check_weights(config)
    if config["device"] == "cpu":
        for_cpu()
    import torchtitan.distributed.utils as titan_distributed
    from torchtitan.config import ConfigManager
    from torchtitan.tools.logging import init_logger, logger
    from torchtitan.train import Trainer

    if config["device"] == "cpu":
        titan_distributed.set_pg_timeouts = lambda *_, **__: None  # Gloo's cannot be set later
    init_logger()
    register(config)
    job = ConfigManager().parse_args(config["extra_args"])
    if config["load"]:
        # Taken only where the run has no checkpoint of its own.
        job.checkpoint.enable = True
        job.checkpoint.initial_load_path, job.checkpoint.initial_load_in_hf = config["load"], True
        job.model.hf_assets_path = config["load"]
    trainer = Trainer(job)
    traces, train_step, notice = StepTraces(config), trainer.train_step, Notice()
    num_steps = int(job.training.steps)

    def traced_step(*words: Any, **more: Any) -> None:
        with traces.step(int(trainer.step) - 1):  # it counts from 1, and is raised before the step
            train_step(*words, **more)
        if job.checkpoint.enable and notice.is_given(trainer.device):
            job.training.steps = int(trainer.step)  # the last step is saved whatever the interval

    trainer.train_step = traced_step
    try:
        trainer.train()
    finally:
        trainer.close()
        torch.distributed.destroy_process_group()
        logger.info("Process group destroyed")
    if int(trainer.step) < num_steps:
        notice.leave(int(trainer.step))


if __name__ == "__main__":
    main()
    leave()
