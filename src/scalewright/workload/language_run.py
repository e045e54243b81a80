"""LanguageRun: everything that decides a run of the language benchmark, resolved. The same one resumes a run.

It is written by `bench` and by studies, read by `run`, and imports neither torch nor the code that it configures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from typing import Any, Literal, cast, get_args

from scalewright import units
from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.records.documents import check_schema, document
from scalewright.records.loader import validate
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.layout import Layout, check_divides, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.run_options import (
    SYNTHETIC,
    CompileMode,
    DeviceKind,
    StepProtocol,
    check_literals,
    check_training,
)

KIND = "language-run"
RunPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Attention = Literal["auto", "cudnn", "flash", "efficient", "math"]
Scaling = Literal["given", "weak", "strong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with a linear warm-up to a constant rate, or to one that falls to zero."""

    learning_rate: float = 3e-4
    warmup_steps: int = 0
    decay_steps: int = 0
    """Updates, warm-up included, over which the rate falls linearly to zero; 0: it stays."""
    beta_1: float = 0.9
    beta_2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """Of matrices; vectors (norms, biases) are not decayed."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient; 0: not clipped."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ConfigError(f"learning rate {self.learning_rate} must be above 0: give one such as 3e-4")
        if self.warmup_steps < 0 or self.decay_steps < 0 or self.clip_norm < 0 or self.weight_decay < 0:
            raise ConfigError("warm-up steps, decay steps, clip norm and weight decay must be 0 or more")
        if not (0 <= self.beta_1 < 1 and 0 <= self.beta_2 < 1 and self.epsilon > 0):
            raise ConfigError("Adam needs betas from 0 up to 1 and an epsilon above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpicureBatch:
    """Batch rules of EPICURE's language benchmark.

    Source  EPICURE Best Practice Guide on AI on EuroHPC Systems 1.0, section on the language benchmark
    """

    strong_gbs: int
    """Samples per step in strong scaling, for any number of devices."""
    weak_accumulation: int
    """Micro-batches of each copy of the model per step in weak scaling."""


EPICURE_SMALL = EpicureBatch(strong_gbs=512, weak_accumulation=16)
EPICURE_LARGE = EpicureBatch(strong_gbs=1536, weak_accumulation=192)
EPICURE_LARGE_FROM_PARAMS = 10**10
"""The guide has one model of 175 billion parameters and one 200 times smaller. Ours counts as the nearer of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRun:
    """One run of the language benchmark."""

    model_id: str
    shape: TransformerShape
    """With `seq` set to the run's own sequence length."""
    layout: Layout
    precision: RunPrecision = "bf16"
    steps: int = 50
    seed: int = 0
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    data: str = SYNTHETIC
    """`synthetic`, or sets of tokens as `PATH[:WEIGHT],...`: .npy, Megatron's .bin, Parquet, or folders of them."""
    compile: CompileMode = "off"
    """torch.compile: off; default; max-autotune; graphs (default, and the whole step replayed as one CUDA graph)."""
    attention: Attention = "auto"
    """Kernel behind scaled-dot-product attention; auto: the fastest that PyTorch has for the device."""
    checkpoint_every: int | Literal["auto"] = 0
    """Steps; 0: only when asked to stop; auto: from the failure model and the measured time of a save."""
    checkpoint_async: bool = True
    checkpoint_keep: int = 2
    """Newest whole checkpoints that are kept."""
    start_from: str = ""
    """Checkpoint folder of another run to start from, of the same model under any layout; empty: from the seed."""
    device_mttf_s: float = 50_000.0 * units.HOUR_S
    """Mean time to failure of one device, for checkpoint_every=auto."""
    scaling: Scaling = "given"
    protocol: StepProtocol = "steady"
    profile_steps: int = 2
    """Steps that are profiled to split their time into compute, exposed communication, data wait and idle."""
    keep_trace: bool = False
    """Keep the Kineto traces of the profiled steps in the run directory."""
    device: DeviceKind = "auto"

    def __post_init__(self) -> None:
        check_literals(self, _CHOICES)
        if self.steps < 1:
            raise ConfigError(f"steps is {self.steps}: a run needs 1 or more")
        if self.checkpoint_keep < 1:
            raise ConfigError(f"checkpoint_keep is {self.checkpoint_keep}: at least the newest one is kept, give 1")
        if self.profile_steps < 0:
            raise ConfigError(f"profile_steps is {self.profile_steps}: give 0 or more")
        check_training(self, num_ranks=int(self.layout.num_gpus))
        check_runs_here(self.model_id, self.shape, self.layout)

    @property
    def seq_len(self) -> int:
        return self.shape.seq

    @property
    def tokens_per_step(self) -> int:
        return int(self.layout.gbs) * self.seq_len

    @property
    def step_flop(self) -> float:
        """Model FLOP of one step by the published formula (narayanan2021, without its recompute factor)."""
        spec = ModelSpec(id=self.model_id, name=self.model_id, shape=self.shape)
        return training_flop_per_sample(spec) * int(self.layout.gbs)

    def document(self) -> dict[str, Any]:
        """Without the source of the shape, whose date would make tomorrow's same run another one."""
        body = asdict(self) | {"shape": shape_document(self.shape), "layout": str(self.layout)}
        return document(KIND, body)


_CHOICES: dict[str, Any] = {
    "precision": RunPrecision,
    "compile": CompileMode,
    "attention": Attention,
    "scaling": Scaling,
    "protocol": StepProtocol,
    "device": DeviceKind,
}


def from_document(doc: dict[str, Any], *, where: str) -> LanguageRun:
    """The run that `LanguageRun.document` wrote."""
    check_schema(doc.get("schema"), KIND, where=where)
    body = {key: value for key, value in doc.items() if key != "schema"}
    known = {f.name for f in fields(LanguageRun)}
    if set(body) != known:
        odd = sorted(set(body) ^ known)[0]
        raise ConfigError(
            f"{where}: key {odd!r} is {'unknown' if odd in body else 'missing'} in a {KIND}; write it anew"
        )
    body["shape"] = restored_shape(body["shape"], where=where)
    body["layout"] = parse_layout(str(body["layout"]))
    try:
        body["optimizer"] = OptimizerSettings(**body["optimizer"])
        return LanguageRun(**body)
    except TypeError as error:
        raise ConfigError(f"{where}: is not a {KIND}: {error}; write it anew") from error


def shape_document(shape: TransformerShape) -> dict[str, Any]:
    return shape.model_dump(mode="json", exclude={"source", "context"})


def restored_shape(body: Mapping[str, Any], *, where: str) -> TransformerShape:
    """The shape that `shape_document` wrote."""
    source = {"kind": "assumed", "text": f"the run's configuration, {where}", "checked": date.min}
    return validate({**body, "source": source}, TransformerShape, where=f"{where}, shape")


def resolve(spec: ModelSpec, layout: Layout, *, seq_len: int = 0, scaling: str = "given", **rest: Any) -> LanguageRun:
    """A run of this model under this layout: sequence length and the scaling mode's batch are settled here."""
    shaped = spec.with_seq(seq_len) if seq_len else spec
    shape = shaped.transformer
    if shape.positions == "learned" and shape.num_positions < shape.seq:
        shape = shape.model_copy(update={"num_positions": shape.seq})
    return LanguageRun(
        model_id=spec.id,
        shape=shape,
        layout=scaled_batch(layout, scaling=scaling, num_params=spec.num_params),
        scaling=cast(Scaling, scaling),
        **rest,
    )


def scaled_batch(layout: Layout, *, scaling: str, num_params: int) -> Layout:
    """The layout with the global batch of EPICURE's weak or strong scaling; `given` keeps the one it has."""
    if scaling == "given":
        return layout
    rule = EPICURE_LARGE if num_params >= EPICURE_LARGE_FROM_PARAMS else EPICURE_SMALL
    if scaling == "weak":
        return replace(layout, gbs=int(layout.dp) * int(layout.mbs) * rule.weak_accumulation)
    if scaling == "strong":
        return replace(layout, gbs=rule.strong_gbs)
    raise ConfigError(f"scaling {scaling!r} is not known: choose {', '.join(get_args(Scaling))}")


def check_runs_here(model_id: str, shape: TransformerShape, layout: Layout) -> None:
    """Refuse what our PyTorch reference does not train: it covers decoders of the GPT and Llama families."""
    lacks = {
        "a mixture of experts": shape.moe is not None,
        "latent attention": shape.mla is not None,
        "an encoder": shape.encoder_layers > 0 or not shape.causal,
        f"{shape.positions} positions": shape.positions not in ("learned", "rotary"),
        "multi-token prediction": shape.num_mtp_layers > 0,
        "a masked-language head": shape.mlm_head or shape.pooler or shape.num_token_types > 0,
        "no final norm": not shape.final_norm,
    }
    odd = [name for name, is_so in lacks.items() if is_so]
    if odd:
        raise NotExpressedError(
            f"{model_id} has {odd[0]}, which the language benchmark does not run: choose a dense GPT or Llama model"
        )
    if layout.recompute == "modules":
        raise ConfigError("recompute=modules is Megatron-Core's: choose none, selective, operators or full here")
    check_divides(layout, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, seq=shape.seq)
    tp = int(layout.tp)
    sizes = {"key-value heads": shape.kv_heads, "vocabulary": shape.vocab, "feed-forward width": shape.ffn_hidden}
    if layout.sp:
        sizes["tokens of a sequence on a rank"] = shape.seq // int(layout.cp)
    uneven = [f"{name} of {size}" for name, size in sizes.items() if size % tp]
    if uneven:
        raise ConfigError(f"tp={tp} does not divide the {uneven[0]}: choose a divisor, or a model with padded sizes")
    if shape.head_dim % 2 and shape.positions == "rotary":
        raise ConfigError(f"head size {shape.head_dim} is odd: rotary positions need an even one")
