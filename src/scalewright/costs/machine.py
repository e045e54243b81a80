"""Machine: the numbers a cost model needs of a system, resolved from the catalogue into floats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scalewright.catalog.derive import link_bytes_per_s, usable_memory_bytes
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import (
    Accelerator,
    Constants,
    Fabric,
    Link,
    Partition,
    Precision,
    Stack,
    System,
    Transport,
)
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.collective_lines import MeasuredLine
from scalewright.costs.measured_convolutions import MeasuredConvolutions
from scalewright.costs.network import HOPS_IN_GROUP, Network, congestion_of_machine, exit_frac
from scalewright.errors import ConfigError, NotExpressedError, UnknownNameError
from scalewright.records.types import Confidence

PRODUCT_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
"""What a training recipe can multiply in; devices list others beside."""
WIDE_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16")
VECTOR_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp64")
NARROW_PRECISIONS: tuple[Precision, ...] = ("fp8", "fp6", "fp4", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a calibration knows of a machine that no catalogue entry has a place for."""

    id: str
    """Name and digest of the calibration: part of the id of every prediction made with it."""
    product_start_s: float
    """Before a product of a device without compute units begins to multiply."""
    attention_flop_per_s: Mapping[str, float]
    """Fused attention forward by precision, for long sequences."""
    attention_backward_ratio: Mapping[str, float]
    """Its backward pass over its forward pass, by precision; what is missing is as in theory."""
    layer_host_s: Mapping[str, float]
    """Host work to issue one layer's forward pass, by stack."""
    tensor_host_s: Mapping[str, float]
    """Host work to update one tensor of weights, by stack."""
    step_host_s: Mapping[str, float]
    """Host work once per step, by stack: data, clipping, reading the loss."""
    adding_stacks: frozenset[str]
    """Stacks whose launches add to the device's time: all on a CPU, and in a graph, where they are gaps in it."""
    convolution_factor: float
    """On convolutions of matrix units, and of CPUs."""
    norm_factor: float
    """On norms that were not measured as operators: a CPU's, and those that a compiler writes."""
    elementwise_factor: float
    """On the traffic of everything that is not a product."""
    num_update_passes: float
    """Times the optimizer's tensors cross memory over one fused pass."""
    num_copy_passes: float
    """Times gradients cross memory to be gathered for their exchange and put back."""
    precisions: tuple[str, ...]
    """Of the steps that the residuals were fitted to."""
    max_ranks: int
    hidden: tuple[int, int]
    """Smallest and largest width of those steps."""
    held_frac: Mapping[str, float] = field(default_factory=dict)
    """Rate of products that run without a pause over that of cool ones, by precision: what the power limit leaves."""
    kernel_gap_s: float = 0.0
    """Between two kernels of a full queue."""
    gap_s: Mapping[str, float] = field(default_factory=dict)
    """Between the kernels of one layer, forward and backward, by stack: the device waits although the queue is full."""
    elementwise_passes: Mapping[tuple[str, bool], float] = field(default_factory=dict)
    """Crossings of everything in a layer that is not a product, by stack and whether in 16 bit; else the stack's."""
    loss_passes: Mapping[tuple[str, bool], float] = field(default_factory=dict)
    """Crossings of the scores for the loss, forward and backward, by stack and whether in 16 bit; else fitted."""
    convolutions: MeasuredConvolutions | None = None
    """Operators of convolutional networks; None where they were not measured."""
    checkpoint_copy_bytes_per_s: float | None = None
    """A device's state to where a checkpoint is written from while training goes on; None where not measured."""


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
    confidence: Confidence = "model"
    """How its rates are known: `calibrated` once a calibration measured here replaces them, else `model`."""
    measured: Measured | None = None
    """None where it was not calibrated."""
    measured_collectives: tuple[MeasuredLine, ...] = ()
    """Times of collectives in place of those that links and algorithms would give; empty where none were measured."""

    def num_nodes_for(self, num_gpus: int) -> int:
        """Nodes that so many devices take; the last one may be partly used."""
        return -(-num_gpus // self.gpus_per_node)

    def as_input(self) -> dict[str, str | int | float | None]:
        """What of the machine a prediction depends on; part of its id."""
        return {
            "name": self.name,
            "accelerator": self.accelerator.id,
            "gpus_per_node": self.gpus_per_node,
            "scale_up_bytes_per_s": self.scale_up_bytes_per_s,
            "network_bytes_per_s_per_gpu": self.network_bytes_per_s_per_gpu,
            "transport": self.transport,
            "fabric": None if self.network is None else self.network.fabric,
            "library": self.library,
            **({} if self.measured is None else {"calibration": self.measured.id}),
        }

    def peak_flop_per_s(self, precision: Precision) -> float:
        fact = self.accelerator.peak.get(precision)
        if fact is None:
            has = ", ".join(name for name in self.accelerator.peak if name in PRODUCT_PRECISIONS)
            raise NotExpressedError(f"{self.accelerator.id} has no {precision} units: choose a precision among {has}")
        return fact.value

    def matmul_flop_per_s(self, precision: Precision) -> float:
        """Best matrix-product rate: published for this device, else peak x the share assumed where nobody did."""
        peak = self.peak_flop_per_s(precision)
        best = self.accelerator.best_matmul.get(precision)
        if best is None and precision == "fp16":
            best = self.accelerator.best_matmul.get("bf16")  # same units, same rate on every device catalogued
        return best.value if best is not None else peak * self.constants.unpublished_matmul_share.value

    def sustained_flop_per_s(self, precision: Precision) -> float:
        """Rate of large products while a job runs.

        Equation  F16 = best min(s, a (x / x0)^-g),  x = 16-bit peak / board power, x0 and a those of the device whose
                  sustained rate was measured; F8 = F16 k best8 / best16, never above best8; as measured where known
        Source    benchmarks/results/h200_micro.jsonl for a; g, s and k fitted (benchmarks/fit.py)
        Assumes   devices with more peak per watt run further below their short-burst rate, which power limits; products
                  in 8 bit spend less energy on each operation, so that power slows them down later; the vector units'
                  have one share of their own wherever power limits the others
        Checked   `scalewright validate`, A100 400 W to B200 1000 W; tests/costs/test_compute.py: the 700 W Hopper
        """
        best, known = self.matmul_flop_per_s(precision), self.accelerator.sustained_matmul
        measured = known.get(precision) or (known.get("bf16") if precision == "fp16" else None)
        if measured is not None:
            return measured.value
        wide = self._wide_precision
        if precision not in NARROW_PRECISIONS or wide is None:
            return best * self._sustained_frac(precision)
        ratio = self.constants.narrow_matmul_gain.value * best / self.matmul_flop_per_s(wide)
        return min(best, self.sustained_flop_per_s(wide) * ratio)

    @property
    def _wide_precision(self) -> Precision | None:
        """What 8-bit rates are measured against."""
        return next((name for name in WIDE_PRECISIONS if name in self.accelerator.peak), None)

    def _sustained_frac(self, precision: Precision) -> float:
        c = self.constants
        if precision in VECTOR_PRECISIONS:
            return (c.vector_matmul_share if self.is_power_limited else c.sustained_matmul_share).value
        return min(c.sustained_matmul_share.value, self._powered_frac)

    @property
    def _powered_frac(self) -> float:
        """What power leaves of the best rate."""
        c, wide = self.constants, self._wide_precision
        if wide is None:
            return 1.0
        pressure = self.peak_flop_per_s(wide) / self.accelerator.tdp.value / c.throttle_reference.value
        return min(1.0, float(c.throttle_share.value * pressure**-c.throttle_exponent.value))

    @property
    def is_power_limited(self) -> bool:
        """Whether power, not the clock, sets the rate of 16-bit products."""
        return self._powered_frac < self.constants.sustained_matmul_share.value

    def held_flop_per_s(self, precision: Precision) -> float:
        """Rate of large products without a pause, for what has no power limit of its own in its model.

        Equation  F f,  f what the power limit leaves of cool products; F where a calibration does not know it
        Source    `bench gemm`, by the calibration
        Assumes   convolutions draw what products draw
        Checked   tests/costs/test_calibrated.py
        """
        held = 1.0 if self.measured is None else self.measured.held_frac.get(precision, 1.0)
        return self.sustained_flop_per_s(precision) * held

    def attention_flop_per_s(self, precision: Precision, stack: Stack) -> float:
        """Rate of fused attention for heads of 128 and long sequences.

        Equation  as measured on this machine, else the best product x the stack's share
        Source    `bench attention`, by the calibration; else benchmarks/fit.py
        Assumes   every stack runs the fastest kernel that was measured
        Checked   tests/costs/test_calibrated.py
        """
        if self.measured is not None and precision in self.measured.attention_flop_per_s:
            return self.measured.attention_flop_per_s[precision]
        return self.matmul_flop_per_s(precision) * stack.attention_share.value

    def layer_host_s(self, stack: Stack) -> float:
        """Host work to issue one layer's forward pass.

        Equation  launches of a layer x time of one, as measured here; else the stack's
        Source    `bench dispatch`, by the calibration; else benchmarks/fit.py
        Assumes   all operations of a layer cost the host what additions cost it
        Checked   tests/costs/test_calibrated.py
        """
        known = {} if self.measured is None else self.measured.layer_host_s
        return known.get(stack.id, stack.host_time.value)

    def gap_s(self, stack: Stack) -> float:
        """Pauses between the kernels of one layer, forward and backward.

        Equation  kernels of a layer x pause between two of a graph, as measured here; else 0
        Source    `bench dispatch`, by the calibration; benchmarks/results/h200_kernels.jsonl for the kernels
        Assumes   a queue that is never empty has the pauses that a graph has
        Checked   tests/costs/test_calibrated.py
        """
        return 0.0 if self.measured is None else self.measured.gap_s.get(stack.id, 0.0)

    def update_host_s(self, stack: Stack, *, num_tensors: FloatLike, visible_frac: FloatLike) -> FloatLike:
        """Host work of one optimizer step.

        Equation  h + n u v,  n tensors, v the share that the device waits for; without a calibration h alone
        Source    `bench dispatch`, by the calibration; else benchmarks/fit.py
        Assumes   tensors are updated one by one, as run/language/optimizer.py does
        Checked   tests/costs/test_calibrated.py
        """
        if self.measured is None:
            return self.constants.step_overhead.value
        once = self.measured.step_host_s.get(stack.id, self.constants.step_overhead.value)
        each = self.measured.tensor_host_s.get(stack.id, 0.0)
        return once + num_tensors * each * (1.0 if stack.id in self.measured.adding_stacks else visible_frac)

    def host_blend(self, stack: Stack) -> float:
        """Exponent with which host and device take turns.

        Equation  1 where launches add to the device's time, else as fitted
        Source    benchmarks/fit.py for GPUs; a CPU is its own host
        Assumes   in a graph a launch is a gap between kernels
        Checked   tests/costs/test_calibrated.py
        """
        adds = self.measured is not None and stack.id in self.measured.adding_stacks
        return 1.0 if adds else self.constants.host_blend.value

    def matmul_is_published(self, precision: Precision) -> bool:
        keys = ("bf16", "fp16") if precision == "fp16" else (precision,)
        return any(k in self.accelerator.best_matmul for k in keys)


def pick_partition(system: System, name: str | None) -> Partition:
    if name is None:
        return next(p for p in system.partitions if p.default)
    for partition in system.partitions:
        if partition.id == name:
            return partition
    known = [p.id for p in system.partitions]
    raise UnknownNameError(f"partition of {system.id}", name, known, hint=f"choose {', '.join(known)}")


def machine_from_system(
    catalog: Catalog, system_name: str, *, partition_name: str | None = None, transport_name: str | None = None
) -> Machine:
    system = catalog.system(system_name)
    partition = pick_partition(system, partition_name)
    accelerator = catalog.accelerator(partition.accelerator)
    constants = catalog.constants()
    per_node = int(partition.accelerators_per_node.value)
    scale_up, latency = _scale_up(catalog, accelerator, partition, per_node)
    machine = Machine(
        name=f"{system.id}/{partition.id}",
        accelerator=accelerator,
        constants=constants,
        gpus_per_node=per_node,
        num_nodes=int(partition.num_nodes.value),
        memory_bytes=usable_memory_bytes(accelerator),
        hbm_bytes_per_s=accelerator.memory_bandwidth.value * constants.memory_bandwidth_share.value,
        scale_up_bytes_per_s=scale_up * constants.scale_up_share.value,
        scale_up_latency_s=latency,
        network_bytes_per_s_per_gpu=None,
        network_latency_s=0.0,
        transport="none",
        library=_library(accelerator),
        in_switch_bytes_per_s=None if partition.in_switch_reduction is None else partition.in_switch_reduction.value,
    )
    machine = _with_host(machine, catalog, partition)
    if partition.fabric is None or partition.nics_per_node is None:
        return machine
    fabric = catalog.fabric(partition.fabric)
    transport = _pick_transport(catalog, fabric.transports, transport_name)
    nic = link_bytes_per_s(catalog.link(partition.nic_link or fabric.link))
    per_gpu = nic * partition.nics_per_node.value / per_node
    return replace(
        machine,
        network_bytes_per_s_per_gpu=per_gpu * transport.achievable.value,
        network_latency_s=transport.latency.value,
        transport=transport.id,
        network=_network(fabric, partition, num_half_nodes=constants.congestion_nodes.value),
    )


def _network(fabric: Fabric, partition: Partition, *, num_half_nodes: float) -> Network:
    """The fabric with what the partition says of its own part of it."""
    nodes = partition.num_nodes.value
    shared = congestion_of_machine(congestion=fabric.congestion.value, num_nodes=nodes, num_half_nodes=num_half_nodes)
    leaf, whole = partition.nodes_per_leaf or fabric.nodes_per_leaf, fabric.max_hops.value
    group = partition.nodes_per_group
    share = (partition.bisection_share or fabric.bisection_share).value
    return Network(
        fabric=fabric.id,
        hop_latency_s=fabric.hop_latency.value,
        num_hops=(1.0, min(whole, HOPS_IN_GROUP[fabric.topology]), whole),
        num_leaf_nodes=math.inf if leaf is None else leaf.value,
        num_group_nodes=math.inf if group is None else group.value,
        num_nodes=nodes,
        exit_frac=exit_frac(topology=fabric.topology, bisection_frac=share),
        collisions=fabric.collisions.value,
        congestion=shared if partition.congestion is None else partition.congestion.value,
        is_compact=partition.placement == "compact",
        is_rail_optimised=fabric.rail_optimised,
        reduces=partition.in_network_reduction,
    )


def _library(accelerator: Accelerator) -> str:
    """NCCL's place is taken by RCCL on AMD's devices and by Gloo on processors."""
    if accelerator.kind == "cpu":
        return "gloo"
    return "rccl" if accelerator.vendor.upper().startswith("AMD") else "nccl"


def _pick_transport(catalog: Catalog, offered: tuple[str, ...], wanted: str | None) -> Transport:
    if wanted is None:
        return catalog.transport(offered[0])
    transport = catalog.transport(wanted)
    if transport.id not in offered:
        raise ConfigError(f"transport {transport.id!r} does not run on this fabric: choose {', '.join(offered)}")
    return transport


def _scale_up(catalog: Catalog, accelerator: Accelerator, partition: Partition, per_node: int) -> tuple[float, float]:
    """Bandwidth one direction per device and latency between devices of a node."""
    name = accelerator.scale_up_link or accelerator.host_link
    link = catalog.link(name) if name is not None else None
    latency = 0.0 if link is None else _latency_s(link)
    if partition.scale_up_bandwidth is not None:
        return partition.scale_up_bandwidth.value, latency
    if per_node == 1:
        return accelerator.memory_bandwidth.value, latency
    if accelerator.kind == "cpu":  # processes of a node exchange through memory: one writes what the other reads
        return accelerator.memory_bandwidth.value / 2.0, _latency_s(catalog.link("loopback"))
    if link is None:
        raise NotExpressedError(
            f"{accelerator.id} has no link between devices: give the partition a scale_up_bandwidth"
        )
    num_links = (
        accelerator.num_scale_up_links.value if accelerator.scale_up_link and accelerator.num_scale_up_links else 1
    )
    return link_bytes_per_s(link) * num_links, latency


def _with_host(machine: Machine, catalog: Catalog, partition: Partition | None) -> Machine:
    """The machine with its hosts' memory and the ways to it, as far as known; a processor is its own host."""
    accelerator, constants = machine.accelerator, machine.constants
    if accelerator.kind in ("cpu", "apu"):
        return machine
    if accelerator.host_link is not None:
        rate = link_bytes_per_s(catalog.link(accelerator.host_link)) * constants.host_link_share.value
        machine = replace(machine, host_link_bytes_per_s=rate)
    if partition is None:
        return machine
    if partition.cpu is not None and partition.cpu_sockets_per_node is not None:
        sockets = partition.cpu_sockets_per_node.value / machine.gpus_per_node
        rate = catalog.accelerator(partition.cpu).memory_bandwidth.value * sockets * constants.host_memory_share.value
        machine = replace(machine, host_memory_bytes_per_s=rate)
    return replace(machine, host_memory_bytes=partition.host_memory.value)


def _latency_s(link: Link) -> float:
    return 0.0 if link.latency is None else link.latency.value


def machine_from_hardware(
    catalog: Catalog,
    *,
    gpu: str,
    gpus_per_node: int,
    scale_up_bytes_per_s: float | None,
    network_bytes_per_s_per_gpu: float | None,
    transport_name: str = "rdma",
    memory_bytes: float | None = None,
) -> Machine:
    """A machine described by a device name and two line rates, as published runs give it."""
    accelerator = catalog.accelerator(gpu)
    constants = catalog.constants()
    transport = catalog.transport(transport_name)
    link = catalog.link(accelerator.scale_up_link) if accelerator.scale_up_link else None
    assumptions = []
    if scale_up_bytes_per_s is None:
        if link is None or accelerator.num_scale_up_links is None:
            raise NotExpressedError(f"{accelerator.id}: neither the row nor the catalogue gives its scale-up bandwidth")
        scale_up_bytes_per_s = link_bytes_per_s(link) * accelerator.num_scale_up_links.value
        assumptions.append("scale-up bandwidth from the catalogue")
    reachable = network_bytes_per_s_per_gpu
    machine = Machine(
        name=f"{accelerator.id} x {gpus_per_node}",
        accelerator=accelerator,
        constants=constants,
        gpus_per_node=gpus_per_node,
        num_nodes=None,
        memory_bytes=memory_bytes or usable_memory_bytes(accelerator),
        hbm_bytes_per_s=accelerator.memory_bandwidth.value * constants.memory_bandwidth_share.value,
        scale_up_bytes_per_s=scale_up_bytes_per_s * constants.scale_up_share.value,
        scale_up_latency_s=link.latency.value if link is not None and link.latency is not None else 0.0,
        network_bytes_per_s_per_gpu=None if reachable is None else reachable * transport.achievable.value,
        network_latency_s=transport.latency.value,
        transport=transport.id,
        assumptions=tuple(assumptions),
        library=_library(accelerator),
    )
    return _with_host(machine, catalog, None)
