"""What the catalogue holds: one frozen, strict type per kind of entry. Data, no arithmetic (see `derive`)."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from scalewright.catalog.caches import Caches
from scalewright.catalog.constant_types import Constants as Constants  # noqa: PLC0414
from scalewright.catalog.entry import Entry as Entry  # noqa: PLC0414
from scalewright.catalog.entry import require_positive
from scalewright.catalog.facts import (
    MAX_SIZE,
    Bytes,
    BytesPerS,
    Count,
    EurPerS,
    FlopPerS,
    Fraction,
    Hertz,
    Id,
    Joules,
    Kgco2e,
    Kgco2ePerJ,
    Seconds,
    Source,
    Strict,
    UsdPerEur,
    UsdPerS,
    Watts,
)
from scalewright.catalog.model_details import ModelDetails
from scalewright.catalog.network import Fabric as Fabric  # noqa: PLC0414
from scalewright.catalog.network import Link as Link  # noqa: PLC0414
from scalewright.catalog.network import NetworkUse, NodeNetwork
from scalewright.catalog.network import Transport as Transport  # noqa: PLC0414
from scalewright.catalog.serving_engine import ServingEngine as ServingEngine  # noqa: PLC0414
from scalewright.catalog.stack import Stack as Stack  # noqa: PLC0414
from scalewright.errors import shortened

Precision = Literal["fp64", "fp64_matrix", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8"]


class Accelerator(Entry, Caches):
    """One device as frameworks count it: a GPU, a GCD of a two-die card, a TPU chip, a CPU socket."""

    kind: Literal["gpu", "apu", "cpu", "tpu", "hpu"]
    vendor: str
    architecture: str
    released: int
    """Year of general availability."""
    memory: Bytes
    usable_memory: Bytes | None = None
    """What the driver offers to programs; makers' "80 GB" are binary, less a little the driver keeps."""
    memory_type: str
    memory_bandwidth: BytesPerS
    peak: dict[Precision, FlopPerS]
    """Dense peaks: matrix units where the device has them; fp32 and fp64 on the vector units."""
    best_matmul: dict[Precision, FlopPerS] = Field(default_factory=dict)
    """Fastest matrix product anyone published for this device, as delivered rate."""
    sustained_matmul: dict[Precision, FlopPerS] = Field(default_factory=dict)
    """Rate that large products hold for seconds on end, where somebody measured it; power limits it below the best."""
    num_cores: Count | None = None
    """FP32 lanes (CUDA cores, stream processors) or CPU cores."""
    flop_per_core_cycle: Count | None = None
    """FP32 operations per core and cycle; cores x clock x this = the FP32 peak."""
    num_compute_units: Count | None = None
    """SMs, CUs, tensor processor cores."""
    clock_base: Hertz | None = None
    clock_boost: Hertz | None = None
    registers_per_compute_unit: Bytes | None = None
    shared_memory_per_compute_unit: Bytes | None = None
    max_threads_per_compute_unit: Count | None = None
    max_blocks_per_compute_unit: Count | None = None
    warp_size: Count | None = None
    tdp: Watts
    gpu_power: Watts | None = None
    """What of it the device itself can draw, where a processor on the same module shares it."""
    scale_up_link: Id | None = None
    """Link that joins devices in a node (NVLink, Infinity Fabric, ICI)."""
    num_scale_up_links: Count | None = None
    host_link: Id | None = None

    @model_validator(mode="after")
    def _something_to_compute_with(self) -> Accelerator:
        if not self.peak:
            raise ValueError("[peak] is empty: give at least one precision")
        for name, fact in {"memory": self.memory, "memory_bandwidth": self.memory_bandwidth, "tdp": self.tdp}.items():
            require_positive(name, fact)
        for precision, fact in self.peak.items():
            require_positive(f"peak.{precision}", fact)
        for precision, fact in self.best_matmul.items():
            if precision not in self.peak:
                raise ValueError(f"best_matmul.{precision} has no peak beside it: give peak.{precision} too")
            if fact.value > self.peak[precision].value:
                raise ValueError(
                    f"best_matmul.{precision} is {fact.text}, above the peak of {self.peak[precision].text}"
                )
        return self


class Partition(NodeNetwork):
    """Nodes of one kind in a system."""

    id: Id
    kind: Literal["gpu", "cpu"]
    num_nodes: Count
    accelerator: Id
    """For a CPU partition: the processor, one device per socket."""
    accelerators_per_node: Count
    accelerators_per_host: Count | None = None
    """Devices of one operating system, where several hosts make up a node of one scale-up domain."""
    cpu: Id | None = None
    cpu_sockets_per_node: Count | None = None
    cpu_cores_per_node: Count | None = None
    host_memory: Bytes
    local_storage: Bytes | None = None
    scale_up_bandwidth: BytesPerS | None = None
    """One direction per device between devices of a node; absent: links x link rate of the accelerator."""
    default: bool = False
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _something_to_run_on(self) -> Partition:
        require_positive("num_nodes", self.num_nodes, whole=True)
        require_positive("accelerators_per_node", self.accelerators_per_node, whole=True)
        require_positive("scale_up_bandwidth", self.scale_up_bandwidth)
        if self.congestion_nodes is not None and self.congestion_nodes.value > self.num_nodes.value / 2:
            raise ValueError(
                f"congestion_nodes is {self.congestion_nodes.text}: a job on more than half of the nodes "
                f"({self.num_nodes.text}) says little of other jobs; take a smaller job"
            )
        return self


class System(Entry):
    """A machine people run on."""

    operator: str
    country: str
    in_production: int | None = None
    scheduler: str
    network: NetworkUse = "quiet"
    """shared: jobs of other people exchange over the fabric, as on a production machine; quiet: one's own cluster."""
    partitions: tuple[Partition, ...] = Field(min_length=1)
    storage: tuple[Id, ...] = ()
    grid: Id | None = None
    pue: Fraction | None = None
    """Power usage effectiveness: facility energy over IT energy, 1 or more."""

    @model_validator(mode="after")
    def _one_default(self) -> System:
        defaults = [p.id for p in self.partitions if p.default]
        if len(defaults) != 1:
            raise ValueError(f"exactly one partition must be default, found {defaults or 'none'}")
        return self


class SizedShape(Strict):
    """Whole numbers that arrays of 64 bits can hold the products of."""

    @model_validator(mode="after")
    def _sizes_are_sensible(self) -> Self:
        for name, value in self:
            if isinstance(value, int) and value > MAX_SIZE:
                raise ValueError(f"{name} is {shortened(str(value))}: no {name} above {MAX_SIZE} makes sense")
        return self


class MoeShape(SizedShape):
    num_experts: int = Field(gt=0)
    top_k: int = Field(gt=0)
    num_shared: int = Field(default=0, ge=0)
    expert_ffn: int = Field(gt=0)
    shared_ffn: int | None = Field(default=None, gt=0)
    """Width of each shared expert; absent: the width of a routed one."""
    num_dense_layers: int = Field(default=0, ge=0)
    """First layers that keep a dense feed-forward of width `ffn_hidden`."""
    shared_gate: bool = False
    """Qwen's scalar gate on the shared expert."""
    router_bias: bool = False
    """DeepSeek's per-expert correction term."""


class MlaShape(SizedShape):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

    q_lora_rank: int = Field(ge=0)
    """0: queries are projected directly."""
    kv_lora_rank: int = Field(gt=0)
    qk_nope_head_dim: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)


class TransformerShape(SizedShape):
    """A transformer by numbers. Parameter and FLOP counts follow from these alone."""

    source: Source
    layers: int = Field(gt=0)
    """Decoder layers (encoder layers for an encoder-only model)."""
    encoder_layers: int = Field(default=0, ge=0)
    """Encoder layers of an encoder-decoder model."""
    hidden: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    ffn_hidden: int = Field(gt=0)
    vocab: int = Field(gt=0)
    seq: int = Field(gt=0)
    """Sequence length the model was trained with."""
    context: int = Field(default=0, ge=0)
    """Longest sequence that later stages of training extended it to; 0: not beyond `seq`, or not known."""
    gated: bool = False
    """Three matrices in the feed-forward (SwiGLU, GEGLU) instead of two."""
    causal: bool = True
    positions: Literal["learned", "rotary", "alibi", "relative"] = "learned"
    num_positions: int = Field(default=0, ge=0)
    """Rows of the learned position table, or buckets of relative bias; 0 for rotary and ALiBi."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_bias: bool = True
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    qk_norm: bool = False
    """Per-head RMS norm of queries and keys (Qwen 3)."""
    tied_embeddings: bool = True
    embedding_norm: bool = False
    """A norm right after the embeddings (BLOOM, BERT)."""
    final_norm: bool = True
    num_token_types: int = Field(default=0, ge=0)
    """BERT's segment embeddings."""
    mlm_head: bool = False
    """BERT's dense + norm before the tied output, and its output bias."""
    pooler: bool = False
    """BERT's dense layer on the first token."""
    num_mtp_layers: int = Field(default=0, ge=0)
    """Multi-token-prediction modules (DeepSeek-V3), each one more layer beside the main stack."""
    moe: MoeShape | None = None
    mla: MlaShape | None = None


ConvBlock = Literal["bottleneck", "basic"]


class ConvShape(SizedShape):
    """A ResNet by numbers."""

    source: Source
    block: ConvBlock = "bottleneck"
    """basic: two 3x3 convolutions, as in ResNet-18 and 34; bottleneck: a 3x3 between two 1x1, as in 50 and deeper."""
    blocks: tuple[int, ...]
    width: int = Field(gt=0)
    num_classes: int = Field(gt=0)
    image_size: int = Field(gt=0)


class PublishedCounts(Strict):
    params: Count | None = None
    active_params: Count | None = None
    includes_embeddings: bool = True
    """False where the source counts parameters without token embeddings."""
    rounded_to: Count | None = None
    """Half a unit of this is the tolerance a check may use; absent: the count is exact."""
    training_tokens: Count | None = None
    """Tokens of the published pretraining run."""


class Model(Entry):
    """Something to train."""

    family: str
    transformer: TransformerShape | None = None
    conv: ConvShape | None = None
    details: ModelDetails | None = None
    """What of a transformer is no size; absent: not known."""
    published: PublishedCounts = PublishedCounts()

    @model_validator(mode="after")
    def _one_shape(self) -> Model:
        if (self.transformer is None) == (self.conv is None):
            raise ValueError("a model needs exactly one shape: [transformer] or [conv]")
        return self


class Storage(Entry):
    """A file system or device that data and checkpoints live on."""

    kind: Literal["parallel", "node-local", "memory", "object"]
    technology: str
    capacity: Bytes | None = None
    read_bandwidth: BytesPerS | None = None
    """Aggregate for a parallel file system, per device for node-local storage."""
    write_bandwidth: BytesPerS | None = None
    latency: Seconds | None = None
    file_rate: Hertz | None = None
    """Small files opened and read a second: of the whole file system, or of one device of node-local storage."""


def _currency(raw: Any) -> str:
    """Euros where the text says so; all else is read as dollars, which names what is wrong with it."""
    if isinstance(raw, EurPerS):
        return "eur"
    return "eur" if isinstance(raw, dict) and "EUR" in str(raw.get("value")) else "usd"


class Price(Entry):
    """What an accelerator costs to use, everywhere or on one system."""

    accelerator: Id
    system: Id | None = None
    """Only on this system, where it comes before prices of the accelerator elsewhere; absent: everywhere."""
    per_accelerator: Annotated[
        Annotated[UsdPerS, Tag("usd")] | Annotated[EurPerS, Tag("eur")], Discriminator(_currency)
    ]
    """Per device and time, in USD or EUR; a device is what frameworks count, such as a GCD of a two-die card."""
    exchange_rate: UsdPerEur | None = None
    """On the day of the price; absent: that of the constants. It is never fetched."""
    basis: Literal["on-demand", "reserved", "allocation", "ownership"]
    valid_on: date

    @model_validator(mode="after")
    def _has_a_rate(self) -> Price:
        require_positive("exchange_rate", self.exchange_rate)
        if isinstance(self.per_accelerator, EurPerS) and self.exchange_rate is None:
            raise ValueError(
                f"per_accelerator is {self.per_accelerator.text}: add exchange_rate, such as "
                '{ value = "1.08 USD/EUR", source = "ecb" }, and its source'
            )
        return self

    @property
    def usd_per_s(self) -> float:
        """In dollars, which all sums are in."""
        if isinstance(self.per_accelerator, UsdPerS):
            return self.per_accelerator.value
        assert self.exchange_rate is not None
        return self.per_accelerator.value * self.exchange_rate.value


class Grid(Entry):
    """Electricity: how much carbon a joule carries."""

    country: str
    year: int
    carbon_intensity: Kgco2ePerJ


class PublishedTotal(Entry):
    """A whole training run's published energy or carbon, to hold our totals against."""

    model: Id
    energy: Joules | None = None
    carbon: Kgco2e | None = None


KINDS: dict[str, type[Entry]] = {
    "accelerators": Accelerator,
    "links": Link,
    "transports": Transport,
    "fabrics": Fabric,
    "systems": System,
    "models": Model,
    "storage": Storage,
    "prices": Price,
    "grids": Grid,
    "totals": PublishedTotal,
    "constants": Constants,
    "stacks": Stack,
    "engines": ServingEngine,
}
SCHEMAS = {kind: f"scalewright.{kind if kind == 'constants' else kind.removesuffix('s')}/1" for kind in KINDS}
"""Schema of each kind's files."""
