"""Serving: one copy of a model that generates, and the rates its engine reaches on its machine."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.catalog.serving_engine import ServingEngine
from scalewright.catalog.types import Precision, Stack, TransformerShape
from scalewright.costs.machine import Machine
from scalewright.costs.machine.generation_rates import GenerationRates
from scalewright.costs.setting import Setting
from scalewright.errors import UnknownNameError
from scalewright.workload.layout import Layout
from scalewright.workload.precision import Recipe

STORED_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "bf16-lean": 2.0, "bf16-pure": 2.0, "fp8": 1.0,
                "mxfp8": 1.0 + 1.0 / 32.0, "nvfp4": 0.5 + 1.0 / 16.0, "mxfp4": 0.5 + 1.0 / 32.0,
                "int4": 0.5 + 2.0 / 128.0, "int8": 1.0}  # fmt: skip
"""Bytes of a stored weight by format, its share of the scales included: one byte for 16 or 32 weights, two for a group
of 128. Training keeps narrow recipes in 16 bit, serving does not."""
PRODUCTS: dict[str, Precision] = {
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "int8": "int8",
}
"""What weights of a format multiply in, where the device has the units; elsewhere they are widened to 16 bit."""
CACHE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1.0 / 16.0}
"""Bytes of a cached element by format."""


def stored_bytes(weights: str) -> float:
    """Bytes of a stored weight in that format."""
    try:
        return STORED_BYTES[weights]
    except KeyError as error:
        hint = f"choose {', '.join(STORED_BYTES)}"
        raise UnknownNameError("format of weights", weights, STORED_BYTES, hint=hint) from error


def cached_bytes(precision: str) -> float:
    """Bytes of a cached element in that format."""
    try:
        return CACHE_BYTES[precision]
    except KeyError as error:
        hint = f"choose {', '.join(CACHE_BYTES)}"
        raise UnknownNameError("precision of the cache", precision, CACHE_BYTES, hint=hint) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One copy of a model that generates: on a machine, split over `tp` x `pp` devices, in a precision."""

    shape: TransformerShape
    machine: Machine
    stack: Stack
    recipe: Recipe
    tp: int
    weight_bytes: float
    """Width of a stored weight."""
    cache_bytes: float
    """Width of a cached element."""
    weights: str = ""
    """Format of the weights; empty: the recipe's own."""
    pp: int = 1
    ep: int = 1
    """Devices that share the experts: those of one copy, or of several that exchange tokens."""
    engine: ServingEngine | None = None
    """Whose limits hold; None: only memory limits."""
    has_parallel_blocks: bool = False
    """Attention and feed-forward of a layer are added up in one sum over tensor parallelism, as in Falcon."""

    @property
    def products(self) -> Precision:
        """What the linear layers multiply in."""
        narrow = PRODUCTS.get(self.weights or self.recipe.name)
        if narrow is not None and narrow in self.machine.accelerator.peak:
            return narrow
        return self.recipe.matmul if narrow is None and not self.weights else self.recipe.attention

    @property
    def table_bytes(self) -> float:
        """Width of embedding and head, which engines leave in 16 bit."""
        return max(self.weight_bytes, min(self.recipe.activation_bytes, 2.0))

    @property
    def num_prefill_tokens(self) -> float:
        """Prompt tokens that one iteration reads at most."""
        if self.engine is None:
            return self.machine.constants.prefill_tokens.value
        return self.engine.prefill_tokens.value

    @property
    def num_max_sequences(self) -> float:
        """Sequences that the engine runs at once at most."""
        return float("inf") if self.engine is None else self.engine.max_sequences.value

    @property
    def num_expert_copies(self) -> float:
        """Copies of the model whose tokens meet in the experts of one expert-parallel group."""
        return max(self.ep / self.tp, 1.0)

    def setting(self, *, num_sequences: int, seq: int) -> Setting:
        """The same question as the training models ask it: a batch of sequences of `seq` tokens; 1 when decoding."""
        copies = max(self.ep // self.tp, 1)
        layout = Layout(tp=self.tp, pp=self.pp, ep=self.ep, dp=copies, mbs=max(num_sequences, 1),
                        gbs=max(num_sequences, 1) * copies)  # fmt: skip
        shape = self.shape.model_copy(update={"seq": seq})
        return Setting(shape=shape, machine=self.machine, layout=layout, recipe=self.recipe, stack=self.stack)

    @property
    def rates(self) -> GenerationRates:
        """What the engine reaches here: measured, else fitted shares of the device's rates."""
        machine, c = self.machine, self.machine.constants
        if machine.generation is not None:
            return machine.generation
        narrow = c.narrow_serving_share.value
        return GenerationRates(
            matmul_flop_per_s={
                name: machine.sustained_flop_per_s(name) * (narrow if is_narrow else c.serving_matmul_share.value)
                for name, is_narrow in {self.products: self.products != self.recipe.attention,
                                        self.recipe.attention: False}.items()
            },
            weight_bytes_per_s=machine.hbm_bytes_per_s,
            cache_bytes_per_s=machine.hbm_bytes_per_s * c.cache_bandwidth_share.value,
            layer_s=c.decode_layer_time.value,
            prompt_layer_s=c.prompt_layer_time.value,
            step_s=c.engine_step_time.value,
            sequence_s=c.sequence_step_time.value,
            blend=c.serving_blend.value,
        )  # fmt: skip

    def matmul_flop_per_s(self, precision: Precision) -> float:
        """Rate of large products; measured ones cover the precisions of the measured steps only."""
        known = self.rates.matmul_flop_per_s
        return known[precision] if precision in known else self.machine.sustained_flop_per_s(precision)
