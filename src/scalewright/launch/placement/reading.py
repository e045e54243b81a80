"""How long an epoch's reading takes in place and from a copy on the nodes, and what training waits for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Constants, Partition, Storage
from scalewright.costs import storage as formulas
from scalewright.costs.machine.from_catalog import pick_partition
from scalewright.data.contents import SetContents
from scalewright.data.scan import FolderScan
from scalewright.errors import ConfigError
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.sites.types import Site

OPERATIONS_PER_FILE = 3
"""open, stat and close, each a request to the metadata server."""
MEMORY_SHARE_FRAC = 0.5
"""Of a node's memory that a copy may take; the rest is the training's."""
FIRST_LOADERS = 4
"""Loader workers per rank to begin with: the infrastructure guide names 2 to 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRates:
    """Rates at which a job on some nodes is fed."""

    num_nodes: int
    read_bytes_per_s: float
    num_files_per_s: float
    local_bytes_per_s: float
    """Of one node's own disk or memory."""
    local_bytes: float | None
    """Room for a copy on a node; None: not known."""
    local_path: str
    local_kind: str
    cores_per_rank: int | None
    source: str
    """Where the rates come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingCost:
    """An epoch's reading, and the copy that would avoid it."""

    supply: ReadingRates
    num_ranks: int
    num_operations: int
    """Metadata requests of an epoch."""
    stream_s: float
    """Reading all bytes once, by all nodes together."""
    metadata_s: float
    copy_s: float
    """Every node copies the whole set."""
    local_s: float
    """Reading an epoch's share from the copy."""
    fits: bool | None
    """Whether a copy fits on a node; None: not known."""
    num_loaders: int
    """Per rank."""
    wait_frac: float | None
    """Of training time that waits for data in place; None: the training's rate was not given."""
    local_wait_frac: float | None
    largest_rate: float
    """Samples per second and rank that reading in place can feed."""

    @property
    def in_place_s(self) -> float:
        return max(self.stream_s, self.metadata_s)

    @property
    def break_even_epochs(self) -> float:
        """Epochs after which the copy has paid; infinite if it never does."""
        saved_s = self.in_place_s - self.local_s
        return self.copy_s / saved_s if saved_s > 0 else math.inf


def supply_of(
    catalog: Catalog, site: Site, *, num_ranks: int, storage: str = "", measured: Path | None = None
) -> ReadingRates:
    """What the site's storage gives to a job of so many ranks."""
    constants = catalog.constants()
    partition = pick_partition(catalog.system(site.system), None) if site.system else None
    per_node = site.num_gpus_per_node or (int(partition.accelerators_per_node.value) if partition else 1)
    num_nodes = math.ceil(num_ranks / per_node)
    entry = _storage(catalog, site, storage)
    read, files, source = _shared_rates(entry, num_nodes, constants)
    if measured is not None:
        read, files, source = _measured_rates(measured, read, files, num_nodes)
    if not site.num_gpus_per_node and partition is None:
        source += "; one rank a node, because the profile does not say"
    local_entry = _local_entry(catalog, site)
    local_read = local_entry.read_bandwidth.value if local_entry.read_bandwidth else read / num_nodes
    cores = _cores_per_rank(site, partition, per_node)
    return ReadingRates(
        num_nodes=num_nodes, read_bytes_per_s=read, num_files_per_s=files, local_bytes_per_s=local_read,
        local_bytes=_local_bytes(site, partition), local_path=_local_path(site), local_kind=site.node_local.kind,
        cores_per_rank=cores, source=source,
    )  # fmt: skip


def reading_cost(
    scan: FolderScan, contents: SetContents, supply: ReadingRates, *, num_ranks: int, num_epochs: int,
    samples_per_s: float | None,
) -> ReadingCost:  # fmt: skip
    """Costs of one epoch over the whole folder."""
    n, size, num_files = supply.num_nodes, float(scan.total_bytes), float(scan.num_files)
    num_opens = contents.opens_per_epoch(num_ranks=num_ranks, num_epochs=num_epochs)
    stream_s, metadata_s = size / supply.read_bytes_per_s, num_opens / supply.num_files_per_s
    sample_bytes, files_per_sample = contents.sample_bytes, num_opens / contents.num_samples
    largest = min(
        supply.read_bytes_per_s / sample_bytes,
        supply.num_files_per_s / files_per_sample if files_per_sample else math.inf,
    )
    waits: tuple[float | None, float | None] = (None, None)
    if samples_per_s is not None:
        needed_per_s = samples_per_s * num_ranks
        in_place_s = formulas.data_wait_s(
            step_s=1.0, step_bytes=needed_per_s * sample_bytes, read_bytes_per_s=supply.read_bytes_per_s,
            loader_s_per_device=0.0, num_loaders_per_device=1, num_files=needed_per_s * files_per_sample,
            num_files_per_s=supply.num_files_per_s,
        )  # fmt: skip
        local_s = formulas.data_wait_s(
            step_s=1.0, step_bytes=needed_per_s * sample_bytes, read_bytes_per_s=supply.local_bytes_per_s * n,
            loader_s_per_device=0.0, num_loaders_per_device=1,
        )  # fmt: skip
        waits = (float(in_place_s / (1 + in_place_s)), float(local_s / (1 + local_s)))
    cores = supply.cores_per_rank
    return ReadingCost(
        supply=supply, num_ranks=num_ranks,
        num_operations=math.ceil(OPERATIONS_PER_FILE * num_opens) + num_ranks * (scan.num_folders + 1),
        stream_s=stream_s, metadata_s=metadata_s,
        copy_s=max(n * size / supply.read_bytes_per_s, n * num_files / supply.num_files_per_s),
        local_s=size / n / supply.local_bytes_per_s,
        fits=None if supply.local_bytes is None else size <= supply.local_bytes,
        num_loaders=FIRST_LOADERS if cores is None else max(min(FIRST_LOADERS, cores - 1), 1),
        wait_frac=waits[0], local_wait_frac=waits[1], largest_rate=largest / num_ranks,
    )  # fmt: skip


def _storage(catalog: Catalog, site: Site, name: str) -> Storage | None:
    if name:
        return catalog.storage(name)
    own = [catalog.storage(one) for one in catalog.system(site.system).storage] if site.system else []
    return next((one for one in own if one.kind in ("parallel", "object")), None)


def _shared_rates(entry: Storage | None, num_nodes: int, constants: Constants) -> tuple[float, float, str]:
    if entry is None:
        read = num_nodes * constants.storage_client_bandwidth.value
        return read, constants.shared_file_rate.value, "usual rates of one node and one job (catalogue constants)"
    read = float(formulas.job_bytes_per_s(storage=entry, direction="read", num_nodes=num_nodes, constants=constants))
    files = float(formulas.num_job_files_per_s(storage=entry, num_nodes=num_nodes, constants=constants))
    return read, files, f"catalogue entry {entry.id}"


def _measured_rates(run: Path, read: float, files: float, num_nodes: int) -> tuple[float, float, str]:
    """Cold rates of `bench storage` on one node; more nodes stay below the shared rate of the whole."""
    measured = read_measurements(RunDirectory(run))
    if measured.kind != "storage":
        raise ConfigError(f"{run}: holds a run of bench {measured.kind}; name a run of bench storage")
    cold = [row for row in measured.rows if row.get("cache") == "cold"]
    streams = [row["bytes_per_s"] for row in cold if row["format"] == "shards" and row["order"] == "sequential"]
    single = [row["samples_per_s"] for row in cold if row["format"] == "files"]
    if not streams and not single:
        raise ConfigError(f"{run}: has no cold rate of shards or files; run bench storage with these formats")
    rate = min(max(streams) * num_nodes, read) if num_nodes > 1 and streams else max(streams, default=read)
    files = min(max(single) * num_nodes, files) if num_nodes > 1 and single else max(single, default=files)
    return float(rate), float(files), f"measured by bench storage in {run}"


def _local_entry(catalog: Catalog, site: Site) -> Storage:
    own = [catalog.storage(one) for one in catalog.system(site.system).storage] if site.system else []
    for one in own:
        if one.kind == "node-local" and site.node_local.kind == "disk":
            return one
    return catalog.storage("dev-shm" if site.node_local.kind == "memory" else "nvme-gen4")


def _local_bytes(site: Site, partition: Partition | None) -> float | None:
    if partition is None:
        return None
    if site.node_local.kind == "memory":
        return partition.host_memory.value * MEMORY_SHARE_FRAC
    return partition.local_storage.value if partition.local_storage is not None else None


def _local_path(site: Site) -> str:
    return f"${site.node_local.variables[0]}" if site.node_local.variables else site.node_local.path


def _cores_per_rank(site: Site, partition: Partition | None, per_node: int) -> int | None:
    if site.cpus_per_gpu is not None:
        return site.cpus_per_gpu.value
    if partition is not None and partition.cpu_cores_per_node is not None:
        return int(partition.cpu_cores_per_node.value) // per_node
    return None
