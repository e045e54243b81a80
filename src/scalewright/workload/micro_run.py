"""What decides a run of the micro benchmarks of one device, resolved: products, memory, attention, dispatch, decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

from scalewright import units
from scalewright.errors import ConfigError, QuantityError
from scalewright.records.documents import document
from scalewright.records.loader import stored
from scalewright.workload.generate_run import EngineExecution, WeightPrecision
from scalewright.workload.products import Product
from scalewright.workload.run_options import DeviceKind

GemmPrecision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
AttentionPrecision = Literal["fp32", "tf32", "fp16", "bf16"]
SHORTEST_BUDGET_S = 1.0
SQUARE = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
"""Sides of the square sweep; those that would take too long on a slow device are left out when it runs."""
STREAM_BYTES = tuple(2**power for power in (16, 18, 20, 22, 24, 26, 28, 30))
"""Of each buffer, from what fits a second-level cache to what fits no cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRun:
    """Matrix products: given shapes, and the search for the best rate that any shape reaches."""

    KIND: ClassVar[str] = "gemm-run"
    precisions: tuple[GemmPrecision, ...]
    products: tuple[Product, ...]
    finds_best: bool
    """Search for the shape with the highest rate, then keep it running to see what the device sustains."""
    skips_missing: bool = False
    """Precisions that the device lacks are noted and left out; otherwise they are refused."""
    device: DeviceKind = "auto"
    budget_s: float

    def __post_init__(self) -> None:
        check_choices("precision", self.precisions, GemmPrecision)
        check_common(self.device, self.budget_s)
        lacking = [p for p in self.precisions if p in ("tf32", "fp8")]
        if self.device == "cpu" and lacking:
            raise ConfigError(f"precision {lacking[0]} needs a GPU that has it: choose fp32 or bf16 for the CPU")
        if not self.products and not self.finds_best:
            raise ConfigError("no product to measure: give --shapes, --sweep or --best")

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    """Copy, add, read and write in memory, and copies between host and device."""

    KIND: ClassVar[str] = "memory-run"
    sizes_bytes: tuple[int, ...] = STREAM_BYTES
    """Of each buffer, smallest first; those that do not fit in a quarter of the memory are left out."""
    device: DeviceKind = "auto"
    budget_s: float

    def __post_init__(self) -> None:
        check_common(self.device, self.budget_s)
        if not self.sizes_bytes or min(self.sizes_bytes) < 4096:
            raise ConfigError(f"buffer sizes {list(self.sizes_bytes)}: give one or more of at least 4 KiB")
        if list(self.sizes_bytes) != sorted(set(self.sizes_bytes)):
            raise ConfigError(f"buffer sizes {list(self.sizes_bytes)}: give each once, smallest first")

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """One call of scaled-dot-product attention; fewer key-value heads than heads is grouped-query attention."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    head_dim: int
    causal: bool = True

    def __post_init__(self) -> None:
        if min(self.batch, self.heads, self.kv_heads, self.seq, self.head_dim) < 1:
            raise ConfigError("attention needs a batch, heads, key-value heads, length and head size of 1 or more")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.heads} heads do not divide among {self.kv_heads} key-value heads: choose a divisor"
            )

    @property
    def forward_flop(self) -> float:
        """Two products of seq x seq x head size per head; a causal mask leaves half of them (dao2023, section 4.1)."""
        whole = 4.0 * self.batch * self.heads * float(self.seq) ** 2 * self.head_dim
        return whole / 2.0 if self.causal else whole

    @property
    def backward_flop(self) -> float:
        """Five products where the forward pass has two (dao2023, section 3.1)."""
        return 2.5 * self.forward_flop


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRun:
    """Attention forward and backward, by every kernel that the device has for it."""

    KIND: ClassVar[str] = "attention-run"
    precisions: tuple[AttentionPrecision, ...]
    cases: tuple[AttentionCase, ...]
    device: DeviceKind = "auto"
    budget_s: float

    def __post_init__(self) -> None:
        check_choices("precision", self.precisions, AttentionPrecision)
        check_common(self.device, self.budget_s)
        if not self.cases:
            raise ConfigError("no attention to measure: give at least one sequence length with --seq")

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRun:
    """What starting a kernel costs the host: eager, compiled, and from a CUDA graph."""

    KIND: ClassVar[str] = "dispatch-run"
    compiles: bool = True
    """Also torch.compile, which needs a compiler and up to a minute."""
    budgets_compiling: bool = False
    """Whether compiling must end within the budget too, else it is left out."""
    device: DeviceKind = "auto"
    budget_s: float

    def __post_init__(self) -> None:
        check_common(self.device, self.budget_s)

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRun:
    """One model: a step of every batch at every context, and prompts of every length."""

    KIND: ClassVar[str] = "decode-run"
    model_id: str
    shape: dict[str, Any]
    """As `language_run.shape_document` writes it."""
    precisions: tuple[WeightPrecision, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    """Tokens that a decoded token attends to."""
    prompts: tuple[int, ...]
    """Lengths of prompts that are read."""
    execution: EngineExecution = "auto"
    device: DeviceKind = "auto"
    budget_s: float

    def __post_init__(self) -> None:
        check_choices("precision", self.precisions, WeightPrecision)
        check_common(self.device, self.budget_s)
        for name in ("batches", "contexts", "prompts"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise ConfigError(f"{name} {list(values)}: give one or more numbers of 1 or more")

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


def check_choices(what: str, values: tuple[str, ...], allowed: Any) -> None:
    known = get_args(allowed)
    odd = [value for value in values if value not in known]
    if odd or not values:
        raise ConfigError(f"{what} {odd[0] if odd else ''!r} is not known: choose from {', '.join(known)}")


def check_common(device: str, budget_s: float) -> None:
    if device not in get_args(DeviceKind):
        raise ConfigError(f"--device {device!r} is not known: choose cpu, cuda or auto")
    if not SHORTEST_BUDGET_S <= budget_s < float("inf"):
        raise ConfigError(f"a budget of {budget_s} s is too short to repeat anything: give --budget of 1 s or more")


def parse_products(text: str) -> tuple[Product, ...]:
    """`4096,4096,4096;8192,1024,4096`: M,N,K of each product."""
    products = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        sides = [side.strip() for side in part.split(",")]
        if len(sides) != 3 or not all(side.isdecimal() for side in sides):
            raise ConfigError(f"--shapes {part!r} is not M,N,K in whole numbers: write 4096,4096,4096;8192,1024,4096")
        m, n, k = (int(side) for side in sides)
        products.append(Product(m=m, n=n, k=k))
    if not products:
        raise ConfigError("--shapes is empty: write M,N,K of each product, such as 4096,4096,4096")
    return tuple(products)


def square_products() -> tuple[Product, ...]:
    return tuple(Product(m=side, n=side, k=side, name="square") for side in SQUARE)


def parse_numbers(text: str, *, flag: str) -> tuple[int, ...]:
    """`512,1024,2048`."""
    wrong = ConfigError(f"{flag} {text!r} is not a list of whole numbers above 0: write 512,1024,2048")
    try:
        numbers = tuple(units.whole(part) for part in text.split(",") if part.strip())
    except QuantityError as error:
        raise wrong from error
    if not numbers or min(numbers) < 1:
        raise wrong
    return numbers


def as_precisions(text: str) -> tuple[GemmPrecision, ...]:
    """`bf16,fp8` as the types of a run, which refuses what it does not know."""
    return cast(tuple[GemmPrecision, ...], tuple(part.strip() for part in text.split(",") if part.strip()))
