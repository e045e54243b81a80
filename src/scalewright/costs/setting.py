"""Setting: what every part of a step's cost depends on, in one frozen bundle, for transformers and for vision."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scalewright.catalog.types import Constants, ConvShape, Stack, TransformerShape
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine import Machine
from scalewright.costs.machine.stack_costs import StackCosts
from scalewright.workload.layout import Layout
from scalewright.workload.precision import Recipe
from scalewright.workload.training import FULL, TEXT, Feed, TrainingMode

WIDE_UNIT_LANES = 128
"""32-bit lanes of a compute unit from GA102 and Hopper on; Volta and the A100 have 64 (NVIDIA's whitepapers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetting:
    """What every training step depends on, for any model: a machine, a layout, a precision and a stack."""

    machine: Machine
    layout: Layout
    """One layout, or columns of layouts."""
    recipe: Recipe
    stack: Stack
    mode: TrainingMode = FULL
    """What is trained, and where its state lives."""
    feed: Feed = TEXT
    """Where samples come from and checkpoints go."""

    @property
    def constants(self) -> Constants:
        return self.machine.constants

    @property
    def stack_costs(self) -> StackCosts:
        """Host work and crossings of memory of the stack on this machine, fitted or measured."""
        return self.machine.stack_costs(self.stack)

    @property
    def num_nodes(self) -> FloatLike:
        """Nodes that the devices fill, at least one; a fraction where they do not fill the last."""
        return np.maximum(self.layout.num_gpus / self.machine.gpus_per_node, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSetting(StepSetting):
    """A ResNet trained data parallel: `mbs` images on each of `dp` devices, channels last or first."""

    shape: ConvShape
    channels_last: bool
    library_norms: bool = False
    """The device's library has activation and sum in its norms, as MXNet and PaddlePaddle call them in 16 bit."""

    @property
    def fuses_norms(self) -> bool:
        """Activation and shortcut are computed in the norms' kernels."""
        return self.stack.compiled or self.library_norms

    @property
    def num_images(self) -> FloatLike:
        """Images of one device and step."""
        return self.layout.mbs

    @property
    def folds(self) -> bool:
        """Stem and pooling are computed in the forms that matrix units and a compiler make fast (run/vision)."""
        on_gpu = self.machine.accelerator.kind != "cpu"
        is_written = self.stack.compiled and not self.library_norms
        return on_gpu and is_written and self.channels_last and not self.on_vector_units

    @property
    def on_vector_units(self) -> bool:
        """32-bit products without TF32 leave the matrix units."""
        return self.recipe.matmul == "fp32"

    @property
    def has_wide_units(self) -> bool:
        """A compute unit has 128 lanes of 32 bit, which the kernels of 64 lanes do not fill."""
        cores, units = self.machine.accelerator.num_cores, self.machine.accelerator.num_compute_units
        return cores is not None and units is not None and cores.value >= WIDE_UNIT_LANES * units.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(StepSetting):
    """A transformer's shape on a machine, split by a layout (or columns of layouts), in a precision, on a stack."""

    shape: TransformerShape

    @property
    def held_recipe(self) -> Recipe:
        """The recipe with weights and gradients as the stack keeps them."""
        recipe, stack = self.recipe, self.stack
        if stack.gradient_bytes is not None:
            recipe = replace(recipe, gradient_bytes=min(recipe.gradient_bytes, stack.gradient_bytes.value))
        if stack.has_short_gradients and recipe.gradient_bytes > recipe.weight_bytes:
            recipe = replace(recipe, gradient_bytes=recipe.gradient_bytes + recipe.weight_bytes)
        return recipe

    @property
    def num_tokens(self) -> FloatLike:
        """Tokens of one micro-batch on one device."""
        return self.layout.mbs * float(self.shape.seq) / self.layout.cp

    @property
    def num_micro_batches(self) -> FloatLike:
        return np.asarray(self.layout.num_micro_batches, dtype=np.float64)[()]

    @property
    def num_layers(self) -> FloatLike:
        """Layers of the fullest pipeline rank."""
        return np.ceil(self.shape.layers / self.layout.pp)

    def num_layers_on(self, pipeline_rank: FloatLike) -> FloatLike:
        """Layers of a pipeline rank: as even as can be.

        Where two more layers would divide, the first and the last rank have one fewer, since they hold the tables
        (Llama 3 and BLOOM were split so: arXiv:2407.21783, section 3.3.2); else the first ranks take what is left.
        """
        even = np.floor(self.shape.layers / self.layout.pp)  # in floats: whole-number division is not vectorised
        rest = self.shape.layers - even * self.layout.pp
        at_an_end = (np.asarray(pipeline_rank) == 0) | (np.asarray(pipeline_rank) == np.asarray(self.layout.pp) - 1)
        takes_one = np.where(self._spares_the_ends(rest), ~at_an_end, np.asarray(pipeline_rank) < rest)
        return even + takes_one

    def num_layers_before(self, pipeline_rank: FloatLike) -> FloatLike:
        """Layers on the pipeline ranks before this one."""
        even = np.floor(self.shape.layers / self.layout.pp)  # in floats, as above
        rest = self.shape.layers - even * self.layout.pp
        first = np.where(self._spares_the_ends(rest), np.maximum(np.asarray(pipeline_rank) - 1.0, 0.0), pipeline_rank)
        return even * pipeline_rank + np.minimum(first, rest)

    def _spares_the_ends(self, rest: FloatLike) -> FloatLike:
        """Two more layers would divide: the first and the last pipeline rank are the ones that have fewer."""
        pp = np.asarray(self.layout.pp)
        spares: FloatLike = (pp > 2) & (np.asarray(rest) == pp - 2)
        return spares

    def rank_moe_frac(self, pipeline_rank: FloatLike) -> FloatLike:
        """Share of a pipeline rank's layers that are mixtures of experts; dense layers come first."""
        if self.shape.moe is None:
            return 0.0
        layers = self.num_layers_on(pipeline_rank)
        dense = np.clip(self.shape.moe.num_dense_layers - self.num_layers_before(pipeline_rank), 0, layers)
        return 1.0 - dense / np.maximum(layers, 1)

    @property
    def norm_split(self) -> FloatLike:
        """Ranks that norms and residuals are split over: by sequence parallelism only."""
        return self.layout.tp if self.layout.sp else 1

    @property
    def moe_frac(self) -> float:
        """Share of layers whose feed-forward is a mixture of experts."""
        moe = self.shape.moe
        return 0.0 if moe is None else max(self.shape.layers - moe.num_dense_layers, 0) / self.shape.layers

    @property
    def feed_forward_width(self) -> float:
        """Elements per token that an average layer's activation functions work on: of a dense layer, or of experts."""
        moe, frac, experts = self.shape.moe, self.moe_frac, 0.0
        if moe is not None:
            experts = moe.top_k * moe.expert_ffn + moe.num_shared * float(moe.shared_ffn or moe.expert_ffn)
        return (1.0 - frac) * self.shape.ffn_hidden + frac * experts

    @property
    def expert_tp(self) -> FloatLike:
        """Ranks that each expert is split over: 1, a whole expert, once experts are spread over devices."""
        return np.where(np.asarray(self.layout.ep) > 1, 1, self.layout.tp)[()]

    @property
    def num_routed_tokens(self) -> FloatLike:
        """Token copies one device's experts work on per micro-batch, evenly routed."""
        moe = self.shape.moe
        if moe is None:
            return 0.0
        return self.num_tokens * moe.top_k * self.expert_tp / self.layout.tp
