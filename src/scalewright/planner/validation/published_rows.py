"""What published rates of generation and of vision training have in common: their nodes, and why some have no score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from scalewright.catalog.derive import link_bytes_per_s
from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine, machine_from_hardware
from scalewright.units import BYTES_PER_S, parse


class RowHardware(Protocol):
    """Devices that a row names."""

    @property
    def gpu(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def gpus_per_node(self) -> int: ...
    @property
    def inter_bw_gb_per_s_per_gpu(self) -> float | None: ...


class RowReason(Protocol):
    """A row that may have no prediction."""

    @property
    def reason(self) -> str | None: ...


def row_machine(catalog: Catalog, hardware: RowHardware) -> tuple[Machine, list[str]]:
    """The row's nodes, and what was assumed. Cards without a link of their own exchange over the host's."""
    accelerator, assumed, scale_up = catalog.accelerator(hardware.gpu), [], None
    if accelerator.scale_up_link is None:
        link = catalog.link(accelerator.host_link or "pcie4-x16")
        scale_up = link_bytes_per_s(link)
        assumed.append(f"devices of a node exchange over {link.id}")
    stated = hardware.inter_bw_gb_per_s_per_gpu
    machine = machine_from_hardware(
        catalog, gpu=hardware.gpu, gpus_per_node=hardware.gpus_per_node, scale_up_bytes_per_s=scale_up,
        network_bytes_per_s_per_gpu=None if stated is None else parse(f"{stated} GB/s", BYTES_PER_S),
    )  # fmt: skip
    return machine, assumed


def lacks_network(hardware: RowHardware) -> bool:
    """Whether a row spans nodes and does not say what joins them."""
    return hardware.inter_bw_gb_per_s_per_gpu is None and hardware.gpus > hardware.gpus_per_node


def reason_counts(rows: Iterable[RowReason]) -> dict[str, int]:
    """How many rows have no prediction, by reason."""
    return dict(Counter(row.reason for row in rows if row.reason is not None))
