"""Split a model over ranks with PyTorch's own distributed package.

| layout | by |
|---|---|
| tp, sp | `parallelize_module`: columns, then rows, of each pair of products; rows of tables; norms |
| cp | `context_parallel` (ring attention) on GPUs; elsewhere keys and values are gathered |
| pp, vpp | `torch.distributed.pipelining`: 1F1B, or interleaved 1F1B with vpp > 1 |
| zero=0 | DDP where a rank holds the whole model; otherwise gradients are all-reduced after the last micro-batch |
| zero=1 | FSDP2, weights kept gathered through a step, gradients reduce-scattered once: a distributed optimizer |
| zero=2 | FSDP2, weights kept gathered, gradients reduce-scattered after every micro-batch (once behind a pipeline) |
| zero=3 | FSDP2, weights gathered again for the backward pass |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from scalewright.run.language.mesh_position import (
    GatherTokens,
    MeshPosition,
    causal_mask,
    chunk_layers,
    local_positions,
)
from scalewright.run.language.model import Block, Transformer
from scalewright.run.language.precision import Numbers
from scalewright.run.language.rotary import LayerConstants
from scalewright.workload.language_run import LanguageRun

ADAPTERS = (".lora_a", ".lora_b")
"""Ends of the names of parameters that are trained where the base is frozen."""


@dataclass(slots=True, kw_only=True)
class SplitModel:
    """The pipeline chunks of this rank: one, or vpp of them. PyTorch calls each one a PipelineStage."""

    position: MeshPosition
    chunks: list[Transformer]
    callables: list[nn.Module]
    """What to call for each chunk: the chunk itself, or DDP around it."""
    chunk_indices: list[int]

    @property
    def is_sharded(self) -> bool:
        """Parameters are shards that FSDP gathers, in fp32."""
        return any(isinstance(chunk, FSDPModule) for chunk in self.chunks)

    @property
    def reduces_itself(self) -> bool:
        """DDP or FSDP averages the gradients over replicas."""
        return self.is_sharded or any(isinstance(module, DistributedDataParallel) for module in self.callables)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trained parameters by their name in the whole model. Ranks that share a name hold copies or shards of one
        tensor."""
        return {name: param for name, param in self.all_parameters().items() if param.requires_grad}

    def all_parameters(self) -> dict[str, nn.Parameter]:
        """Those that are frozen too."""
        params: dict[str, nn.Parameter] = {}
        for chunk in self.chunks:
            params |= chunk.whole_model_parameters()
        return params


def split_model(
    run: LanguageRun, position: MeshPosition, numbers: Numbers, constants: LayerConstants | None = None
) -> SplitModel:
    """Build, initialise and split this rank's chunks, block by block: no rank ever holds the whole model."""
    pp, vpp = int(run.layout.pp), int(run.layout.vpp)
    ranges = chunk_layers(run.shape.layers, num_chunks=pp * vpp)
    indices = [position.pp_rank + chunk * pp for chunk in range(vpp)]
    chunks = [build_chunk(run, position, numbers, ranges[index], constants) for index in indices]
    return SplitModel(position=position, chunks=chunks, callables=list(chunks), chunk_indices=indices)


def wrap_in_ddp(split: SplitModel, run: LanguageRun, numbers: Numbers) -> None:
    """Replicate with DDP if `uses_ddp`. Call it when the weights have their final type: DDP's buckets copy it."""
    position = split.position
    if uses_ddp(run, position, numbers):
        ids = [position.device.index] if position.device.type == "cuda" else None
        split.callables = [
            DistributedDataParallel(
                chunk,
                device_ids=ids,
                process_group=position.replica_group,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )
            for chunk in split.chunks
        ]


def uses_ddp(run: LanguageRun, position: MeshPosition, numbers: Numbers) -> bool:
    """DDP reduces during the backward pass, in the type of the weights. It is not used if it would round an
    accumulated gradient, or if tensors are already split."""
    whole = int(run.layout.tp) == 1 and int(run.layout.pp) == 1
    short_sum = numbers.weights != torch.float32 and int(run.layout.num_micro_batches) > 1
    return position.num_replicas > 1 and run.layout.zero == 0 and whole and not short_sum


def build_chunk(
    run: LanguageRun, position: MeshPosition, numbers: Numbers, layers: range, constants: LayerConstants | None = None
) -> Transformer:
    shape, layout, device = run.shape, run.layout, position.device
    cp = int(layout.cp)
    positions = local_positions(shape.seq, cp=cp, cp_rank=position.cp_rank, device=device)
    gathers = cp > 1 and device.type != "cuda"
    mask = causal_mask(shape.seq, cp=cp, cp_rank=position.cp_rank, device=device) if gathers else None
    with torch.device("meta"):
        model = Transformer(
            shape, layers=layers, positions_L=positions, mask_LK=mask, recompute=layout.recompute,
            linear=numbers.linear, constants=constants,
        )  # fmt: skip
    if numbers.freezes_base:
        for name, param in model.named_parameters():
            param.requires_grad_(name.endswith(ADAPTERS))
    sharded = layout.zero >= 1 and position.num_replicas > 1
    parts: list[tuple[str, nn.Module]] = [(f"layers.{name}", block) for name, block in model.layers.items()]
    parts += [(name, part) for name, part in (("embedding", model.embedding), ("head", model.head)) if part is not None]
    for name, part in parts:
        model.materialise(part, name, seed=run.seed, layers=shape.layers, device=device)
        if int(layout.tp) > 1:
            parallelize_module(part, position.mesh["tp"], tensor_plan(part, sp=layout.sp), src_data_rank=None)
        if gathers and isinstance(part, Block):
            part.attention.gather_keys = partial(_gather, group=position.context_group)
        if run.compile != "off" and (isinstance(part, Block) or int(layout.tp) == 1):
            part.compile(**numbers.compile_options(run.compile))
        if sharded and isinstance(part, Block):
            _shard(part, run, position, numbers)
    model.tie()
    if sharded:
        _shard(model, run, position, numbers)
    return model


def _gather(x: torch.Tensor, *, group: torch.distributed.ProcessGroup) -> torch.Tensor:
    gathered: torch.Tensor = GatherTokens.apply(x, group)  # type: ignore[no-untyped-call]
    return gathered


def _shard(module: nn.Module, run: LanguageRun, position: MeshPosition, numbers: Numbers) -> None:
    policy = MixedPrecisionPolicy(
        param_dtype=numbers.compute if numbers.compute != torch.float32 else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # the tables of rotary positions stay fp32
    )
    fully_shard(module, mesh=position.mesh["replica"], mp_policy=policy, reshard_after_forward=run.layout.zero == 3)


def tensor_plan(part: nn.Module, *, sp: bool) -> dict[str, ParallelStyle]:
    """How the products of a part are cut: the first of a pair by columns, the second by rows.

    Source  shoeybi2019 (arXiv:1909.08053); sequence parallelism by korthikanti2022 (arXiv:2205.05198)
    """
    spread = Shard(1) if sp else Replicate()  # of the residual stream between products
    if not isinstance(part, Block):
        return _ends_plan(part, sp=sp)
    plan: dict[str, ParallelStyle] = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=spread),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=spread),
    }
    if part.feed_forward.gate is not None:
        plan["feed_forward.gate"] = ColwiseParallel()
    if part.attention.query_norm is not None:  # one weight for all heads, which are spread over ranks
        plan["attention.query_norm"] = SequenceParallel(sequence_dim=2, use_local_output=True)
        plan["attention.key_norm"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    if sp:
        plan |= {
            "norm_1": SequenceParallel(),
            "norm_2": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        }
    return plan


def _ends_plan(part: nn.Module, *, sp: bool) -> dict[str, ParallelStyle]:
    """Embedding and head: rows of the vocabulary over ranks; scores stay split for the loss."""
    spread = Shard(1) if sp else Replicate()
    rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=spread)
    plan: dict[str, ParallelStyle] = {
        "tokens": rows,
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=spread),
        "output": ColwiseParallel(input_layouts=spread, output_layouts=Shard(-1)),
    }
    if sp:
        plan["norm"] = SequenceParallel(use_local_output=hasattr(part, "tokens"))
    return {name: style for name, style in plan.items() if getattr(part, name, None) is not None}
