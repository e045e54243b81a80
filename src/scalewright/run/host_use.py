"""How a rank uses its host: the cores it is bound to, and how long its thread was ready and had no core."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scalewright import units
from scalewright.records import metric_names as names
from scalewright.records.node_devices import numa_cpus, numa_of, pci_folder
from scalewright.run.metrics import MetricWriter

SCHEDULED = Path("/proc/thread-self/schedstat")
"""Time on a core, time ready without one, in nanoseconds, and the number of turns (Linux, proc_pid_schedstat)."""
SYS = Path("/sys")


class HostUse:
    """Records the binding of a rank when it begins and when it changes, and its wait for cores."""

    def __init__(self, metrics: MetricWriter, device: torch.device) -> None:
        self._metrics, self._device = metrics, device
        self._cpus: frozenset[int] = frozenset()
        self.check(step=-1)

    def check(self, *, step: int) -> None:
        """Write the binding if it is not as it was."""
        cpus = frozenset(os.sched_getaffinity(0))
        if cpus != self._cpus:
            self._cpus = cpus
            detail = binding_words(cpus, self._device)
            self._metrics.event(step=step, name=names.EVENT_BINDING, detail=detail, value=float(len(cpus)))

    @staticmethod
    def waited_s() -> float | None:
        """Time so far in which this thread was ready and had no core; None: the kernel does not say."""
        try:
            return int(SCHEDULED.read_bytes().split()[1]) * units.NANO
        except (OSError, ValueError, IndexError):
            return None


def binding_words(cpus: Iterable[int], device: torch.device, sys: Path = SYS) -> str:
    """`threads=1 cpus=0-3 cores=8 numa=0 device_numa=0`."""
    own = sorted(cpus)
    nodes = [node for node, members in numa_cpus(sys).items() if set(own) & set(members)]
    words = [f"threads={torch.get_num_threads()}", f"cpus={cpu_list(own)}", f"cores={os.cpu_count() or 1}"]
    if nodes:
        words.append(f"numa={','.join(nodes)}")
    if device.type == "cuda":
        node = _device_numa(device, sys)
        words += [] if node < 0 else [f"device_numa={node}"]
    return " ".join(words)


def cpu_list(cpus: list[int]) -> str:
    """The kernel's form: `0-3,64`."""
    spans: list[list[int]] = []
    for cpu in cpus:
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _device_numa(device: torch.device, sys: Path) -> int:
    with contextlib.suppress(AttributeError, RuntimeError, OSError):
        place: Any = torch.cuda.get_device_properties(device)
        bus = f"{place.pci_domain_id:04x}:{place.pci_bus_id:02x}:{place.pci_device_id:02x}.0"
        return numa_of(pci_folder(sys, bus))
    return -1


class OwnClock:
    """When a rank has its own gradients: up to then it waited for no other rank.

    The parameter that the forward pass uses first gets its gradient last. It works for plain data parallelism on a CPU:
    other layouts wait for other ranks in the middle of the backward pass, and a GPU is ahead of its host.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, is_used: bool) -> None:
        self._ready_s: float | None = None
        first = next((param for param in params if param.requires_grad), None)
        if is_used and first is not None:
            first.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, _: torch.Tensor) -> None:
        self._ready_s = time.perf_counter()

    def since_s(self, started_s: float) -> float | None:
        """Seconds from the start of a step; None where nothing was noted."""
        ready_s, self._ready_s = self._ready_s, None
        return None if ready_s is None or ready_s < started_s else ready_s - started_s
