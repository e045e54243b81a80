"""Figures that follow from catalogue values: computed when asked for, never stored."""

from __future__ import annotations

from scalewright import units
from scalewright.catalog.types import Accelerator, Fabric, Link, Partition, Precision, Price


def serial_link_bytes_per_s(
    *, transfers_per_s: float, bits_per_transfer: float, payload_bits: int, line_bits: int, num_lanes: float
) -> float:
    """Rate of a serial link, one direction.

    Equation  B = rate x bits x payload/line x lanes / 8
    Source    pcisig2019 (PCI Express Base Specification 5.0), section 4.2: 32 GT/s, 128b/130b
    Assumes   encoding is the only overhead; packet headers and flow control take a further 5-15 %
    Checked   PCIe 5.0 x16 = 63.0 GB/s one direction, 126 both
    """
    r, b, lanes = transfers_per_s, bits_per_transfer, num_lanes
    return r * b * payload_bits / line_bits * lanes / 8.0


def link_bytes_per_s(link: Link) -> float:
    """One direction of one link, stated or computed from its signalling."""
    if link.bandwidth is not None:
        return link.bandwidth.value
    assert link.signalling is not None
    s = link.signalling
    return serial_link_bytes_per_s(
        transfers_per_s=s.rate_per_lane.value,
        bits_per_transfer=s.bits_per_transfer.value,
        payload_bits=s.payload_bits,
        line_bits=s.line_bits,
        num_lanes=s.num_lanes.value,
    )


def vector_peak_flop_per_s(*, num_cores: float, clock_hz: float, flop_per_core_cycle: float) -> float:
    """Peak of the vector units.

    Equation  peak = cores x clock x operations per cycle
    Source    nvidia2020 (A100 whitepaper), Table 1
    Assumes   every core busy every cycle at the boost clock; a fused multiply-add is two operations
    Checked   A100 6912 x 1.41 GHz x 2 = 19.5 TFLOP/s; H100 16896 x 1.98 GHz x 2 = 66.9 TFLOP/s
    """
    return num_cores * clock_hz * flop_per_core_cycle


def accelerator_vector_peak_flop_per_s(accelerator: Accelerator) -> float | None:
    cores, clock, per_cycle = accelerator.num_cores, accelerator.clock_boost, accelerator.flop_per_core_cycle
    if cores is None or clock is None or per_cycle is None:
        return None
    return vector_peak_flop_per_s(num_cores=cores.value, clock_hz=clock.value, flop_per_core_cycle=per_cycle.value)


def usable_memory_bytes(accelerator: Accelerator) -> float:
    """Memory a program can have: what the driver reports where known, else what follows from the datasheet's figure.

    Makers write GB and count GiB: of "96 GB" the driver offers 94.8 GiB. A figure in GiB is taken as it is.
    """
    if accelerator.usable_memory is not None:
        return accelerator.usable_memory.value
    counted = None if accelerator.kind == "cpu" else units.decimal_size_as_binary(accelerator.memory.text)
    return accelerator.memory.value if counted is None else counted * (1.0 - DRIVER_FRAC)


DRIVER_FRAC = 0.0125
"""Of a device's memory, what the driver keeps: 1 of 80 GiB, the usual share of the shipped entries."""


def training_precision(accelerator: Accelerator) -> Precision:
    """What most people train in on this device: bf16, or fp16 where it has none, or fp32."""
    order: tuple[Precision, ...] = ("bf16", "fp16", "fp32", "fp64")
    for precision in order:
        if precision in accelerator.peak:
            return precision
    raise AssertionError(f"{accelerator.id} has no peak at all")


def ridge_flop_per_byte(accelerator: Accelerator, precision: Precision) -> float:
    """Arithmetic intensity at which the device turns from memory-bound to compute-bound.

    Equation  ridge = peak / memory bandwidth
    Source    williams2009 (Roofline, CACM 52(4))
    Assumes   datasheet peak and bandwidth, so the true ridge lies somewhat elsewhere
    Checked   A100 80 GB bf16: 312e12 / 2.039e12 = 153 FLOP/byte
    """
    return accelerator.peak[precision].value / accelerator.memory_bandwidth.value


def matmul_frac(accelerator: Accelerator, precision: Precision) -> float | None:
    """Best published matrix product over peak."""
    best = accelerator.best_matmul.get(precision)
    return None if best is None else best.value / accelerator.peak[precision].value


def flop_per_s_per_w(accelerator: Accelerator, precision: Precision) -> float:
    """Dense peak over board power: FLOP/s/W, which is also FLOP per joule."""
    return accelerator.peak[precision].value / accelerator.tdp.value


def flop_per_usd(accelerator: Accelerator, price: Price, precision: Precision) -> float:
    """Dense peak work that one dollar buys at the given price."""
    return accelerator.peak[precision].value / price.usd_per_s


def switched_bisection_bytes_per_s_bidir(*, num_devices: int, link_bytes_per_s_bidir: float) -> float:
    """Bisection of devices on a non-blocking switch, summed over both directions.

    Equation  (n / 2) x links x rate
    Source    nvidia2018 (NVSwitch technical overview)
    Assumes   the switch carries every device's full rate across the middle
    Checked   16 V100 with 6 links of 25 + 25 GB/s: 300 GB/s per device, 2.4 TB/s
    """
    return num_devices / 2 * link_bytes_per_s_bidir


def injection_bytes_per_s_per_node(partition: Partition, nic: Link) -> float:
    num_nics = partition.nics_per_node.value if partition.nics_per_node is not None else 0.0
    return link_bytes_per_s(nic) * num_nics


def fabric_bisection_bytes_per_s(partition: Partition, fabric: Fabric, nic: Link) -> float:
    """Bandwidth across the middle of a partition's network, one direction.

    Equation  (nodes / 2) x NICs x rate x share
    Source    dally2004 (Principles and Practices of Interconnection Networks), section 3.3
    Assumes   all nodes of the partition under one fabric, whose `bisection_share` holds where the partition has none
    Checked   a full fat tree of n nodes gives n/2 times a node's injection bandwidth
    """
    per_node = injection_bytes_per_s_per_node(partition, nic)
    share = partition.bisection_share or fabric.bisection_share
    return partition.num_nodes.value / 2 * per_node * share.value
