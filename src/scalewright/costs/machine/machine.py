"""Machine: the numbers a cost model needs of a system, resolved from the catalogue into floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewright.catalog.types import Accelerator, Constants, Precision, Stack
from scalewright.costs.machine.collective_lines import MeasuredLine
from scalewright.costs.machine.generation_rates import GenerationRates
from scalewright.costs.machine.measured_convolutions import NOT_MEASURED, MeasuredConvolutions
from scalewright.costs.machine.network import Network
from scalewright.costs.machine.stack_costs import (
    EngineStack,
    Launches,
    StackCosts,
    StackFactors,
    fitted_stack_costs,
    measured_stack_costs,
    shipped_factors,
    with_factors,
)
from scalewright.errors import NotExpressedError
from scalewright.records.documents import digest
from scalewright.records.types import Confidence

PRODUCT_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
"""What a training recipe can multiply in; devices list others beside."""
WIDE_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16")
LATER_ARCHITECTURES = ("Hopper", "Blackwell", "Blackwell Ultra")
"""NVIDIA's with instructions for matrix products that Ampere lacks."""
VECTOR_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp64")
NO_FACTORS = StackFactors()
NARROW_PRECISIONS: tuple[Precision, ...] = ("fp8", "fp6", "fp4", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedRange:
    """The real steps behind a calibration's interval: what lies outside widens it."""

    precisions: tuple[str, ...]
    max_ranks: int
    hidden: tuple[int, int]
    """Smallest and largest width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices, nodes and network. Bandwidths are one direction."""

    name: str
    accelerator: Accelerator
    constants: Constants
    gpus_per_node: int
    num_nodes: int | None
    """Nodes that exist; None where unbounded."""
    memory_bytes: float
    hbm_bytes_per_s: float
    """Reachable: datasheet x share."""
    scale_up_bytes_per_s: float
    """Reachable per device inside a node."""
    scale_up_latency_s: float
    network_bytes_per_s_per_gpu: float | None
    """Reachable per device between nodes; None where the machine is one node."""
    network_latency_s: float
    """Of one message between nodes, without the switches that `network` counts."""
    transport: str
    assumptions: tuple[str, ...] = ()
    host_memory_bytes: float | None = None
    """Memory of a node's hosts; None where unknown, or where devices and hosts share one memory."""
    host_link_bytes_per_s: float | None = None
    """Reachable between a device and its host; None where unknown."""
    host_memory_bytes_per_s: float | None = None
    """A device's share of what an optimizer on the host reaches; None where unknown."""
    network: Network | None = None
    """The fabric's tiers; None where only a rate between nodes is known."""
    library: str = "nccl"
    """Whose collectives run: it has the algorithms that `collectives` lists."""
    in_switch_bytes_per_s: float | None = None
    """Data summed per second by the switch between a node's devices; None where it does not sum."""
    host_gpus: int | None = None
    """Devices of one operating system, where a node has several; None: all of a node."""
    confidence: Confidence = "model"
    """How its rates are known: `calibrated` once a calibration measured here replaces them, else `model`."""
    measured_collectives: tuple[MeasuredLine, ...] = ()
    """Times of collectives in place of those that links and algorithms would give; empty where none were measured."""
    # From here on: fields that a calibration fills. The defaults say that nothing was measured.
    calibration_id: str = ""
    """Name and digest of the calibration: part of the id of every prediction made with it. Empty: a catalogued one."""
    launches: Launches | None = None
    """Times of launches; None: stacks cost what was fitted."""
    product_start_s: float = 0.0
    """Before a product of a device without compute units begins to multiply."""
    held_frac: Mapping[str, float] = field(default_factory=dict)
    """Rate of products that run without a pause over that of cool ones, by precision: what the power limit leaves."""
    attention_rates_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """Fused attention forward by precision, for long sequences; absent: the stack's share of the best product."""
    attention_backward_ratio: Mapping[str, float] = field(default_factory=dict)
    """Its backward pass over its forward pass, by precision; absent: as the algorithm counts."""
    convolutions: MeasuredConvolutions = NOT_MEASURED
    """Operators of convolutional networks."""
    convolution_factor: float = 1.0
    """On convolutions of matrix units, and of CPUs."""
    norm_factor: float = 1.0
    """On norms that were not measured as operators: a CPU's, and those that a compiler writes."""
    generation: GenerationRates | None = None
    """What a serving engine reaches; None: fitted shares of the device's rates."""
    kernel_gap_s: float = 0.0
    """Between two kernels of a full queue."""
    autocast_host_frac: float = 0.0
    """More host work of a vision step under autocast; 0 where the host time is fitted to such steps."""
    is_own_host: bool = False
    """A measured CPU: what its host does adds to what its device does."""
    num_update_passes: float = 1.0
    """Times the optimizer's tensors cross memory over one fused pass."""
    num_copy_passes: float = 0.0
    """Times gradients cross memory to be gathered for their exchange and put back."""
    checkpoint_copy_bytes_per_s: float | None = None
    """Rate of copying a device's state before an asynchronous save; None if not measured."""
    calibrated_range: CalibratedRange | None = None
    """Of the real steps that its interval comes from; None: the interval is that of the published runs."""
    engine_stacks: Mapping[str, EngineStack] = field(default_factory=dict)
    """Stacks of training programs that were fitted here, by the id that a stack of theirs has."""

    def num_nodes_for(self, num_gpus: int) -> int:
        """Nodes that so many devices take; the last one may be partly used."""
        return -(-num_gpus // self.gpus_per_node)

    @property
    def gpus_per_host(self) -> int:
        """Devices of one operating system."""
        return self.gpus_per_node if self.host_gpus is None else self.host_gpus

    def as_input(self) -> dict[str, str | int | float | None]:
        """What of the machine a prediction depends on; part of its id."""
        return {
            "name": self.name,
            "accelerator": self.accelerator.id,
            "rates": digest(self._rates()),
            "gpus_per_node": self.gpus_per_node,
            "scale_up_bytes_per_s": self.scale_up_bytes_per_s,
            "network_bytes_per_s_per_gpu": self.network_bytes_per_s_per_gpu,
            "transport": self.transport,
            "fabric": None if self.network is None else self.network.fabric,
            "network": None if self.network is None else ("shared" if self.network.is_shared else "quiet"),
            "library": self.library,
            **({"calibration": self.calibration_id} if self.calibration_id else {}),
        }

    def _rates(self) -> list[float | Mapping[str, float] | None]:
        """Figures of the device, so that an edited entry gives another id."""
        device = self.accelerator
        tables = (device.peak, device.best_matmul, device.sustained_matmul)
        power = (device.tdp, device.gpu_power, device.num_compute_units)
        return [
            self.memory_bytes,
            self.hbm_bytes_per_s,
            *({str(name): fact.value for name, fact in table.items()} for table in tables),
            *(None if fact is None else float(fact.value) for fact in power),
        ]

    def peak_flop_per_s(self, precision: Precision) -> float:
        fact = self.accelerator.peak.get(precision)
        if fact is None:
            has = ", ".join(name for name in self.accelerator.peak if name in PRODUCT_PRECISIONS)
            raise NotExpressedError(f"{self.accelerator.id} has no {precision} units: choose a precision among {has}")
        return fact.value

    def matmul_flop_per_s(self, precision: Precision) -> float:
        """Best matrix-product rate: published for this device; in 8 bit and fewer, where none is, the share of the
        peak that its best 16-bit product reaches; else an assumed share."""
        peak = self.peak_flop_per_s(precision)
        best = self.accelerator.best_matmul.get(precision)
        if best is None and precision == "fp16":
            best = self.accelerator.best_matmul.get("bf16")  # same units, same rate on every device catalogued
        if best is not None:
            return best.value
        wide = self._wide_precision
        if precision in NARROW_PRECISIONS and wide is not None and wide in self.accelerator.best_matmul:
            return peak * self.accelerator.best_matmul[wide].value / self.peak_flop_per_s(wide)
        return peak * self.constants.unpublished_matmul_share.value

    @property
    def _wide_precision(self) -> Precision | None:
        """The 16-bit precision that its products are known in."""
        return next((name for name in WIDE_PRECISIONS if name in self.accelerator.peak), None)

    @property
    def generation_confidence(self) -> Confidence:
        """Of generation: a calibration without decode steps leaves it to catalogued rates."""
        return "model" if self.generation is None else self.confidence

    def sustained_flop_per_s(self, precision: Precision) -> float:
        """Rate of large products while a job runs.

        Equation  F = best min(1, a (x / x0)^-g),  x = 16-bit peak / board power, x0 and a those of the device whose
                  sustained rates were measured, g one for 16 bit and one for 8 bit and fewer; as measured where known
        Source    benchmarks/results/h200_micro.jsonl and h200_narrow.jsonl for a: 84 % of the best rate in 16 and in
                  8 bit alike; g fitted (benchmarks/fit.py)
        Assumes   devices with more peak per watt run further below their short-burst rate, which power limits; the
                  vector units' have one share of their own wherever power limits the others
        Checked   `scalewright validate`, A100 400 W to B200 1000 W; tests/costs/test_compute.py: the 700 W Hopper
        """
        best, known = self.matmul_flop_per_s(precision), self.accelerator.sustained_matmul
        measured = known.get(precision) or (known.get("bf16") if precision == "fp16" else None)
        return best * self._powered_frac(precision) if measured is None else measured.value

    def _powered_frac(self, precision: Precision) -> float:
        """What power leaves of the best rate."""
        c = self.constants
        if precision in VECTOR_PRECISIONS:
            return c.vector_matmul_share.value if self.is_power_limited else 1.0
        wide = self._wide_precision
        if wide is None:
            return 1.0
        power = self.accelerator.gpu_power or self.accelerator.tdp
        pressure = self.peak_flop_per_s(wide) / power.value / c.throttle_reference.value
        exponent = c.narrow_throttle_exponent if precision in NARROW_PRECISIONS else c.throttle_exponent
        return min(1.0, float(c.throttle_share.value * pressure**-exponent.value))

    @property
    def is_power_limited(self) -> bool:
        """Whether power, not the clock, sets the rate of 16-bit products."""
        return self._powered_frac(WIDE_PRECISIONS[0]) < 1.0

    def held_flop_per_s(self, precision: Precision) -> float:
        """Rate of large products without a pause, for what has no power limit of its own in its model.

        Equation  F f,  f what the power limit leaves of cool products; F where a calibration does not know it
        Source    `bench gemm`, by the calibration
        Assumes   convolutions draw what products draw
        Checked   tests/costs/test_calibrated.py
        """
        return self.sustained_flop_per_s(precision) * self.held_frac.get(precision, 1.0)

    def attention_flop_per_s(self, precision: Precision, stack: Stack) -> float:
        """Rate of fused attention for heads of 128 and long sequences.

        Equation  as measured on this machine, else the best product x the stack's share, x the share of kernels that
                  are older than the device; over the factor of a training program that was fitted here
        Source    `bench attention` and `calibrate --engine`, by the calibration; else benchmarks/fit.py
        Assumes   every stack that was not fitted here runs the fastest kernel that was measured
        Checked   tests/costs/test_calibrated.py
        """
        slower = self.factors_of(stack).attention_factor
        rate = self.attention_rates_flop_per_s.get(precision)
        if rate is not None:
            return rate / slower
        share, device = stack.attention_share.value, self.accelerator
        if stack.has_ampere_attention and device.architecture in LATER_ARCHITECTURES:
            share = share * self.constants.ampere_attention_share.value
        return self.matmul_flop_per_s(precision) * share / slower

    def factors_of(self, stack: Stack) -> StackFactors:
        """The factors of the training program whose stack this is: fitted here, else the catalogue's; else 1."""
        engine = self.engine_stacks.get(stack.id)
        if engine is not None:
            return engine.factors
        shipped = stack.engine_factors.get(stack.id)
        return NO_FACTORS if shipped is None else shipped_factors(shipped)

    def stack_costs(self, stack: Stack) -> StackCosts:
        """What a stack costs here. This is the one place where measured launches take the place of fitted ones."""
        if self.launches is None:
            on_cpu = self.accelerator.kind == "cpu"
            return with_factors(fitted_stack_costs(stack, self.constants, on_cpu=on_cpu), self.factors_of(stack))
        costs = measured_stack_costs(stack, self.constants, self.launches)
        return with_factors(costs, self.factors_of(stack))

    def num_update_passes_of(self, stack: Stack) -> float:
        """Times the optimizer's tensors cross memory over one fused pass.

        Equation  n f,  n of this machine, f of the training program that was fitted here
        Source    the engine constants for n; `calibrate --engine` for f
        Assumes   a program's optimizer crosses memory as often for every model
        Checked   tests/costs/test_engine_factors.py
        """
        return self.num_update_passes * self.factors_of(stack).update_factor

    def matmul_is_published(self, precision: Precision) -> bool:
        keys = ("bf16", "fp16") if precision == "fp16" else (precision,)
        return any(k in self.accelerator.best_matmul for k in keys)
