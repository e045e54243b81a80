"""Read JSON files with DeepSpeedConfig: deepspeed_config.py PACKAGES FILE=DP... -> JSON on stdout."""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

import deepspeed.comm
from deepspeed.runtime.config import DeepSpeedConfig


class Groups:
    """What a launched job knows: the size of its data-parallel group."""

    def __init__(self, dp: int) -> None:
        self.dp = dp

    def get_data_parallel_world_size(self) -> int:
        return self.dp


deepspeed.comm.get_rank = lambda: 0  # without a rank the parser ignores the groups
configs = []
for pair in sys.argv[2:]:
    file, _, dp = pair.rpartition("=")
    try:
        config = DeepSpeedConfig(file, mpu=Groups(int(dp)))
    except AssertionError as error:
        configs.append({"refused": str(error)})
        continue
    configs.append(
        {
            "gbs": config.train_batch_size,
            "mbs": config.train_micro_batch_size_per_gpu,
            "num_micro_batches": config.gradient_accumulation_steps,
            "zero": int(config.zero_optimization_stage),
            "bf16": config.bfloat16_config.enabled,
            "gradients": config.grad_accum_dtype,
            "is_pure": config.bfloat16_config.bf16_optimizer_states,
            "fp16": config.float16_config.enabled,
            "tp": max(config.tensor_parallel_config.autotp_size, 1),
            "ep": config.expert_parallel_config.autoep_size if config.expert_parallel_config.enabled else 1,
            "num_checkpoints": config.activation_checkpointing_config.number_checkpoints,
        }
    )
sys.stdout.write("\n" + json.dumps(configs))
