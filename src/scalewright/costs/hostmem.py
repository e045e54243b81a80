"""Host memory of one node: processes, loaders, pinned buffers, state moved off the devices, checkpoint copies."""

from __future__ import annotations

from scalewright.catalog.types import Constants
from scalewright.costs.breakdown import Breakdown


def pinned_bytes(*, batch_bytes: float, num_prefetched: int, num_loaders: int) -> float:
    """Page-locked batches waiting for the device.

    Equation  n f S,  n loaders, each f batches ahead
    Source    PyTorch documentation, torch.utils.data: prefetch_factor batches per worker, pin_memory
    Assumes   every prefetched batch is pinned
    Checked   tests/costs/test_stage.py: linear in what is prefetched
    """
    return num_loaders * num_prefetched * batch_bytes


def host_memory(
    *, num_devices: int, offloaded_bytes_per_device: float, checkpoint_bytes_per_device: float, num_loaders: int,
    batch_bytes: float, num_prefetched: int, constants: Constants,
) -> Breakdown:  # fmt: skip
    """Bytes of host memory that the devices of one node ask for.

    Equation  n (process + offloaded + checkpoint copy + loaders x worker + pinned)
    Source    ren2021 (ZeRO-Offload, arXiv:2101.06840), section 4.1, for state on the host
    Assumes   one process per device; an asynchronous checkpoint holds one whole copy until it is written
    Checked   tests/costs/test_stage.py: 70B with Adam on the host does not fit a Perlmutter node
    """
    c, n = constants, num_devices
    pinned = pinned_bytes(batch_bytes=batch_bytes, num_prefetched=num_prefetched, num_loaders=num_loaders)

    def term(name: str, each_bytes: float, formula: str = "hostmem.host_memory") -> Breakdown:
        return Breakdown(
            name=name, unit="bytes", value=n * each_bytes, formula=formula, inputs={"per_device_bytes": each_bytes}
        )

    return Breakdown(
        name="host_memory",
        unit="bytes",
        formula="hostmem.host_memory",
        parts=(
            term("processes", c.process_host_memory.value),
            term("loaders", num_loaders * c.loader_worker_memory.value),
            term("pinned", pinned, "hostmem.pinned_bytes"),
            term("offloaded_state", offloaded_bytes_per_device),
            term("checkpoint_copy", checkpoint_bytes_per_device),
        ),
    )
