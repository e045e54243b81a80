"""Layout: how a model and its batch are split over devices. One grammar everywhere.

    tp=4,pp=16,vpp=2,cp=1,ep=1,dp=8,mbs=1,gbs=1536,zero=1,sp=1,recompute=full

Whole-number knobs may be NumPy columns (many layouts at once); the categorical ones are scalars.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from scalewright.errors import ConfigError, LayoutError
from scalewright.workload.grammar import assignments, whole_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntLike = int | NDArray[np.int64]

Recompute = Literal["none", "selective", "modules", "operators", "full"]
COLUMNS = ("tp", "pp", "vpp", "cp", "ep", "dp", "mbs", "gbs")
KEYS = (*COLUMNS, "zero", "sp", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism, batch sizes and memory policies."""

    tp: IntLike = 1
    """Tensor parallel: devices that share each matrix."""
    pp: IntLike = 1
    """Pipeline parallel: stages."""
    vpp: IntLike = 1
    """Virtual stages per device (interleaved schedule)."""
    cp: IntLike = 1
    """Context parallel: devices that share each sequence."""
    ep: IntLike = 1
    """Expert parallel: devices that share the experts, inside data parallel."""
    dp: IntLike = 1
    """Data parallel: copies of the model."""
    mbs: IntLike = 1
    """Micro-batch: samples per device and pass."""
    gbs: IntLike = 1
    """Global batch: samples per step."""
    zero: int = 0
    """ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 weights too (FSDP)."""
    sp: bool = False
    """Sequence parallel: norms and residuals split along the sequence inside a tensor-parallel group."""
    recompute: Recompute = "none"
    """What is computed again in the backward pass: nothing; attention scores; norms, activation functions and the
    up-projections of latent attention (modules, as Megatron-Core names them); everything but every second product
    (operators, as PyTorch's selective checkpointing does); whole layers."""

    @property
    def num_gpus(self) -> IntLike:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def num_micro_batches(self) -> IntLike:
        return self.gbs // (self.dp * self.mbs)

    @property
    def is_column(self) -> bool:
        return any(not isinstance(getattr(self, name), int) for name in COLUMNS)

    def at(self, index: int) -> Layout:
        """One layout out of columns."""
        chosen: dict[str, Any] = {}
        for name in COLUMNS:
            value = getattr(self, name)
            chosen[name] = value if isinstance(value, int) else int(value[index])
        return replace(self, **chosen)

    def as_dict(self) -> dict[str, Any]:
        if self.is_column:
            raise AssertionError("columns of layouts have no single dictionary; use at(i)")
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def brief(self) -> str:
        """The layout without the knobs that are off."""
        always = ("tp", "pp", "dp", "mbs", "gbs")
        off = {"vpp": 1, "cp": 1, "ep": 1, "zero": 0, "sp": False, "recompute": "none"}
        shown = {k: v for k, v in self.as_dict().items() if k in always or v != off[k]}
        return ",".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in shown.items())

    def __str__(self) -> str:
        return ",".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in self.as_dict().items())


def parse_layout(text: str) -> Layout:
    written = assignments(text, allowed=KEYS, what="layout")
    numbers = {k: whole_number(v, key=k, what="layout") for k, v in written.items() if k in COLUMNS}
    numbers.setdefault("gbs", numbers.get("dp", 1) * numbers.get("mbs", 1))  # one micro-batch per copy
    zero = whole_number(written.get("zero", "0"), key="zero", what="layout", least=0)
    sp = whole_number(written.get("sp", "0"), key="sp", what="layout", least=0)
    if zero > 3:
        raise ConfigError(f"layout has zero={zero}: ZeRO stages are 0, 1, 2 and 3")
    if sp > 1:
        raise ConfigError(f"layout has sp={sp}: sequence parallel is 0 (off) or 1 (on)")
    recompute = written.get("recompute", "none")
    if recompute not in get_args(Recompute):
        raise ConfigError(f"layout has recompute={recompute}: choose {', '.join(get_args(Recompute))}")
    return Layout(**numbers, zero=zero, sp=bool(sp), recompute=cast(Recompute, recompute))


def interleaves(*, layers: int, pp: IntLike, vpp: IntLike) -> Any:
    """Whether vpp chunks on each stage hold the layers, so that only a stage's last chunk is shorter, by one layer.

    Megatron-LM and torchtitan run such chunks; none may be empty. True or false for each of a column of splits.
    """
    fullest = -(-layers // pp)
    return (fullest % vpp == 0) & ((layers % pp == 0) | (fullest > vpp))


def divisibility_problems(
    layout: Layout, *, layers: int, heads: int, kv_heads: int, seq: int, num_experts: int = 0
) -> list[str]:
    """Why a single layout cannot split this model and batch; empty when it can."""
    assert not layout.is_column
    tp, pp, vpp, cp = int(layout.tp), int(layout.pp), int(layout.vpp), int(layout.cp)
    dp, mbs, gbs, ep = int(layout.dp), int(layout.mbs), int(layout.gbs), int(layout.ep)
    problems = []
    if heads % tp:
        problems.append(f"tp={tp} does not divide {heads} attention heads; choose a divisor of {heads}")
    if max(kv_heads, tp) % min(kv_heads, tp):
        problems.append(f"tp={tp} and {kv_heads} key-value heads do not divide either way")
    if pp > layers:
        problems.append(f"pp={pp} is more stages than the model's {layers} layers")
    elif vpp > 1 and not interleaves(layers=layers, pp=pp, vpp=vpp):
        problems.append(f"pp={pp} x vpp={vpp} does not divide {layers} layers; interleaving needs equal chunks")
    if vpp > 1 and pp == 1:
        problems.append(f"vpp={vpp} needs a pipeline: set pp above 1 or vpp=1")
    if seq % cp or (cp > 1 and seq % (2 * cp)):
        problems.append(f"cp={cp} does not split a sequence of {seq} into equal halves per rank")
    if gbs % (dp * mbs):
        problems.append(f"gbs={gbs} is not a multiple of dp x mbs = {dp} x {mbs} = {dp * mbs}")
    elif vpp > 1 and (gbs // (dp * mbs)) % pp:
        problems.append(f"{gbs // (dp * mbs)} micro-batches are not a multiple of pp={pp}; interleaving needs that")
    if layout.sp and tp == 1:
        problems.append("sp=1 needs tensor parallelism: set tp above 1 or sp=0")
    if (dp * cp * tp) % ep:
        problems.append(f"ep={ep} does not divide dp x cp x tp = {dp * cp * tp}")
    if ep > 1 and not num_experts:
        problems.append(f"ep={ep} needs a mixture of experts: this model has none, set ep=1")
    elif ep > 1 and num_experts % ep:
        problems.append(f"ep={ep} does not divide {num_experts} experts; choose a divisor of {num_experts}")
    return problems


def check_divides(layout: Layout, *, layers: int, heads: int, kv_heads: int, seq: int, num_experts: int = 0) -> None:
    problems = divisibility_problems(
        layout, layers=layers, heads=heads, kv_heads=kv_heads, seq=seq, num_experts=num_experts
    )
    if problems:
        more = f"; also {problems[1]}" if len(problems) > 1 else ""
        raise LayoutError(f"layout {layout.brief} cannot be used: {problems[0]}{more}")
