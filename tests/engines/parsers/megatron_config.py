"""Build Megatron-Core's transformer configuration from parsed arguments: it checks them against each other.

megatron_config.py PACKAGES FILE -> JSON on stdout; FILE holds a list of keyword arguments.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")

import megatron.core.utils  # noqa: E402
import torch  # noqa: E402
from megatron.core.distributed import DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig  # noqa: E402
from packaging.version import Version  # noqa: E402

# Asked for its version only, which a machine without an accelerator has none of.
megatron.core.utils.get_te_version = lambda: Version("2.9.0")
CLASSES = (TransformerConfig, MLATransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
fields = sorted({field.name for cls in CLASSES for field in dataclasses.fields(cls)})
built = []
for given in json.loads(Path(sys.argv[2]).read_text()):
    cls = MLATransformerConfig if given.get("multi_latent_attention") else TransformerConfig
    names = {field.name for field in dataclasses.fields(cls)}
    if given.get("gated_linear_unit"):
        given["activation_func"] = torch.nn.functional.silu
    dtype = torch.bfloat16 if given.get("bf16") else torch.half if given.get("fp16") else torch.float
    config = cls(**{k: v for k, v in given.items() if k in names}, pipeline_dtype=dtype, params_dtype=dtype)
    stages = config.pipeline_model_parallel_layout
    built.append(
        {
            "num_layers": config.num_layers,
            "kv_channels": config.kv_channels,
            "tp": config.tensor_model_parallel_size,
            "pp": config.pipeline_model_parallel_size,
            "cp": config.context_parallel_size,
            "ep": config.expert_model_parallel_size,
            "layers_of_stages": [
                sum(kind.name == "decoder" for chunk in stages.layout[stage] for kind in chunk)
                for stage in range(config.pipeline_model_parallel_size)
            ]
            if stages
            else None,
        }
    )
sys.stdout.write("\n" + json.dumps({"fields": fields, "built": built}))
