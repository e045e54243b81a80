"""This machine as the cost models see it: its catalogued GPU, else the rates that a short probe measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Accelerator
from scalewright.costs.machine import Machine, machine_from_hardware
from scalewright.errors import ConfigError, EnvironmentFailedError, NotExpressedError, UnknownNameError
from scalewright.records.documents import check_schema, document
from scalewright.records.types import ExitCode
from scalewright.units import SECONDS, format
from scalewright.workload.precision import recipe

PROBE_TIMEOUT_S = 120.0
SMI_TIMEOUT_S = 10.0
AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
GPU_START_S = 20.0
"""Start-up time with a GPU: imports, context and the first collectives."""
CPU_START_S = 6.0
"""Start-up time without a GPU: imports of two processes that share the cores."""
CPU_W = 15.0
"""Power per rank of a probed CPU. An accelerator entry must have one, but nothing is computed from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Rates measured in a second or two."""

    device: str
    name: str
    num_devices: int
    num_cores: int
    precision: str
    matmul_flop_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float
    import_s: float
    """Time to import PyTorch, which is most of the start of a small run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This machine, and the source of its numbers."""

    machine: Machine
    device: str
    start_s: float
    """Time before the first step."""
    basis: str
    """Source of the numbers in one phrase: the catalogue, or a probe."""

    def as_document(self, precision: str) -> dict[str, Any]:
        """The document in the run directory. The MFU of the run is computed with this peak."""
        peak = self.machine.accelerator.peak.get(recipe(precision).matmul)
        return document(
            "machine",
            {
                "name": self.machine.name,
                "accelerator": self.machine.accelerator.id,
                "basis": self.basis,
                "peak_flop_per_s": None if peak is None else peak.value,
                "peak_kind": None if peak is None else peak.source.kind,
                "memory_bytes": self.machine.memory_bytes,
            },
        )


def visible_gpus() -> list[str]:
    """Names of the GPUs that programs here may use: NVIDIA's from nvidia-smi, AMD's from the kernel's topology.

    Variables that hide GPUs from programs hide them here as well.
    """
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False,
        )  # fmt: skip
        rows = [line.split(",", 1) for line in done.stdout.splitlines() if "," in line] if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        rows = []
    if rows:
        ids, names = [row[0].strip() for row in rows], [row[1].strip() for row in rows]
        return [names[place] for place in _shown(ids, "CUDA_VISIBLE_DEVICES")]
    nodes = [path.parent.name for path in sorted(AMD_NODES.glob("*/gpu_id")) if _is_gpu(path)]
    shown = set(_shown(nodes, "ROCR_VISIBLE_DEVICES")) & set(_shown(nodes, "HIP_VISIBLE_DEVICES"))
    return [f"amd gpu {nodes[place]}" for place in sorted(shown)]


def _shown(ids: list[str], variable: str) -> list[int]:
    """Places of the devices that a variable leaves visible: numbers or beginnings of ids, up to the first unknown."""
    text = os.environ.get(variable)
    if text is None:
        return list(range(len(ids)))
    places: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if word.isdigit() and int(word) < len(ids):
            places.append(int(word))
            continue
        named = [place for place, name in enumerate(ids) if word and name.startswith(word)]
        if word.startswith("MIG-"):  # a slice of one of the GPUs, which CUDA shows as one device
            named = [0]
        if len(named) != 1:
            break
        places += named
    return list(dict.fromkeys(places))


def _is_gpu(path: Path) -> bool:
    """Whether a node of the kernel's topology is a GPU. CPUs are nodes too, with the gpu_id 0."""
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False


def run_probe(*, device: str, precision: str) -> Probe:
    """Measure in a child process: this process does not load PyTorch, and a crash in a kernel ends only the probe."""
    command = [sys.executable, "-m", "scalewright.run", "probe", "--device", device, "--precision", precision]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailedError(
            f"measuring this machine took more than {format(PROBE_TIMEOUT_S, SECONDS)}: give a catalogued --system"
        ) from error
    if done.returncode < 0:
        raise EnvironmentFailedError(
            f"PyTorch crashed (signal {-done.returncode}) in a {precision} matrix product: choose another --precision"
        )
    if done.returncode != ExitCode.YES:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("error: ")
        raise EnvironmentFailedError(last)
    doc = json.loads(done.stdout)
    check_schema(doc.pop("schema"), "probe", where="the probe")
    return Probe(**doc)


def device_here(requested_device: str, *, num_ranks: int) -> str:
    """cpu or cuda; `auto` means GPUs if there are any. More ranks than GPUs are refused."""
    if requested_device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {requested_device!r} is not known: choose cpu, cuda or auto")
    num_gpus = 0 if requested_device == "cpu" else len(visible_gpus())
    if requested_device == "cuda" and not num_gpus:
        raise EnvironmentFailedError("no GPU is visible here: use --device cpu, or start this on a node with a GPU")
    if 0 < num_gpus < num_ranks:
        raise ConfigError(f"{num_ranks} ranks on {num_gpus} GPUs: use at most one rank per GPU, or --device cpu")
    return "cuda" if num_gpus else "cpu"


def machine_here(catalog: Catalog, *, num_ranks: int, precision: str, device: str) -> Here:
    """This machine from the catalogue entry of its GPU, else from a probe."""
    if device == "cuda":
        catalogued = _from_catalogue(catalog, visible_gpus())
        if catalogued is not None:
            return catalogued
    return machine_from_probe(catalog, run_probe(device=device, precision=precision), num_ranks=num_ranks)


def _from_catalogue(catalog: Catalog, gpus: list[str]) -> Here | None:
    try:
        machine = machine_from_hardware(
            catalog,
            gpu=gpus[0],
            gpus_per_node=len(gpus),
            scale_up_bytes_per_s=None,
            network_bytes_per_s_per_gpu=None,
        )
    except (UnknownNameError, NotExpressedError):
        return None
    return Here(machine=machine, device="cuda", start_s=GPU_START_S, basis=f"catalogue entry {machine.accelerator.id}")


def machine_from_probe(catalog: Catalog, probe: Probe, *, num_ranks: int) -> Here:
    """This machine with the rates of a probe. Ranks on a CPU share its cores and memory; on GPUs each has its own."""
    share = num_ranks if probe.device == "cpu" else 1
    accelerator = _probed_accelerator(probe, share)
    constants = catalog.constants()
    link = catalog.link("loopback")
    machine = Machine(
        name=f"this machine, probed ({probe.name})",
        accelerator=accelerator,
        constants=constants,
        gpus_per_node=max(num_ranks, probe.num_devices),
        num_nodes=1,
        memory_bytes=accelerator.memory.value,
        hbm_bytes_per_s=accelerator.memory_bandwidth.value,
        scale_up_bytes_per_s=accelerator.memory_bandwidth.value / 2.0,
        scale_up_latency_s=0.0 if link.latency is None else link.latency.value,
        network_bytes_per_s_per_gpu=None,
        network_latency_s=0.0,
        transport="none",
        assumptions=("rates from a short probe of this machine, not from a calibration: only a rough outlook",),
    )
    crowding = max(1.0, num_ranks / probe.num_cores)
    return Here(
        machine=machine,
        device=probe.device,
        start_s=2.0 * probe.import_s * crowding + 2.0,
        basis=f"probe of {probe.name}, {probe.num_cores} cores",
    )


def _probed_accelerator(probe: Probe, share: int) -> Accelerator:
    source = {"kind": "measured", "text": "short probe on this machine", "checked": date.today()}

    def fact(value: float, unit: str) -> dict[str, Any]:
        return {"value": f"{value:.6g} {unit}", "source": source}

    rate = fact(probe.matmul_flop_per_s / share, "FLOP/s")
    return Accelerator.model_validate(
        {
            "schema": "scalewright.accelerator/1",
            "id": "probed-cpu" if probe.device == "cpu" else "probed-gpu",
            "name": probe.name,
            "kind": "cpu" if probe.device == "cpu" else "gpu",
            "vendor": "this machine",
            "architecture": "probed",
            "released": date.today().year,
            "memory": fact(probe.memory_bytes / share, "B"),
            "memory_type": "probed",
            "memory_bandwidth": fact(probe.memory_bytes_per_s / share, "B/s"),
            "peak": {probe.precision: rate},
            "best_matmul": {probe.precision: rate},
            "tdp": fact(CPU_W, "W"),
            "sources": {"probe": source},
        }
    )


def num_cores() -> int:
    """Cores that this process may use. A scheduler or container may have limited them."""
    return len(os.sched_getaffinity(0))
