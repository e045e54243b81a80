"""What `--system` names: a catalogued system, a calibration, or `here`, this machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from scalewright import __version__
from scalewright.catalog import calibration as calibrations
from scalewright.catalog import calibration_quality
from scalewright.catalog.calibration import Calibration, Fingerprint
from scalewright.catalog.library import Catalog, folded
from scalewright.catalog.measured_storage import storage_here
from scalewright.catalog.types import Storage, System
from scalewright.costs.machine import Machine, machine_from_system, pick_partition
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.errors import ConfigError, EnvironmentFailedError, UnknownNameError
from scalewright.here.devices import num_cores, visible_gpus
from scalewright.records.types import WARNING, EnvName
from scalewright.sites.cluster import ask_cluster_name
from scalewright.sites.loader import load_site, site_files

HERE = "here"
CPUINFO = Path("/proc/cpuinfo")
PLAIN_CPU = "laptop"
"""System that the calibration of a machine without GPUs refines, unless another is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A machine that was named, and where its numbers come from."""

    machine: Machine
    system: str
    """Catalogued system around it: its storage, grid and prices."""
    basis: str
    """One phrase: the catalogue, or a calibration."""
    calibration: Calibration | None = None
    storage: Storage | None = None
    """Where samples are read and checkpoints go: the system's first, or what one node measured."""
    has_measured_storage: bool = False
    doubt: str = ""
    """Why its calibration may be far off; empty where nothing says so."""
    is_trusted: bool = True
    """Whether its calibration predicts its own left-out runs well enough to be used without being named."""

    def storage_of(self, catalog: Catalog, *, num_gpus: int) -> Storage | None:
        """The storage of a job of so many devices. A calibration is of one node: several have the catalogue's."""
        return self.storage if num_gpus <= self.machine.gpus_per_node else own_storage(catalog, self.system)


def own_storage(catalog: Catalog, system: str) -> Storage | None:
    """The first storage of a catalogued system; None where it has none."""
    own = catalog.system(system).storage
    return catalog.storage(own[0]) if own else None


def place_of(
    catalog: Catalog, name: str, *, partition: str | None = None, transport: str | None = None, num_ranks: int = 1,
    device: str = "auto",
) -> Place:  # fmt: skip
    """The machine of that name. A rank on a calibrated CPU is one of `num_ranks` that share it."""
    if folded(name) == HERE:
        return _here(catalog, partition=partition, transport=transport, num_ranks=num_ranks, device=device)
    try:
        return _catalogued(catalog, name, partition, transport)
    except UnknownNameError as error:
        if error.kind != "system" or name not in calibrations.names():
            raise
    return _calibrated(catalog, calibrations.load(name), partition, transport, num_ranks)


def calibrated_here(catalog: Catalog, *, num_ranks: int, device: str) -> Place | None:
    """This machine by its best calibration; None where it has none."""
    matching = calibrations.matching(fingerprint_here(device), versions_here())
    return _best_calibrated(catalog, matching, None, None, num_ranks) if matching else None


def _here(catalog: Catalog, *, partition: str | None, transport: str | None, num_ranks: int, device: str) -> Place:
    """The system that a variable names, else the matching calibration, else the scheduler's cluster."""
    named = os.environ.get(EnvName.SYSTEM, "")
    if named and folded(named) != HERE:
        return _named_here(catalog, named, partition, transport, num_ranks, device)
    fingerprint = fingerprint_here(device)
    matching = calibrations.matching(fingerprint, versions_here())
    if matching:
        return _best_calibrated(catalog, matching, partition, transport, num_ranks)
    cluster = cluster_name(os.environ)
    if cluster:
        with contextlib.suppress(UnknownNameError):
            return _catalogued(catalog, system_of_cluster(cluster), partition, transport)
    raise ConfigError(_unknown_machine(catalog, fingerprint, cluster))


def _named_here(
    catalog: Catalog, name: str, partition: str | None, transport: str | None, num_ranks: int, device: str
) -> Place:
    """What $SCALEWRIGHT_SYSTEM names. A calibration must be of this machine, because the user says `here`."""
    if name not in calibrations.names():
        return _catalogued(catalog, name, partition, transport)
    calibration = calibrations.load(name)
    why = calibrations.why_not_here(calibration, fingerprint_here(device), versions_here())
    if why:
        raise ConfigError(
            f"{EnvName.SYSTEM}={name} is not this machine as it is now: {why}; run scalewright calibrate again, or ask "
            f"about that machine with --system {name}"
        )
    return _calibrated(catalog, calibration, partition, transport, num_ranks)


def _catalogued(catalog: Catalog, name: str, partition: str | None, transport: str | None) -> Place:
    machine = machine_from_system(catalog, name, partition_name=partition, transport_name=transport)
    system = catalog.system(name).id
    return Place(
        machine=machine, system=system, basis=f"system {system}", storage=own_storage(catalog, system)
    )  # fmt: skip


def _best_calibrated(
    catalog: Catalog, matching: Sequence[Calibration], partition: str | None, transport: str | None, num_ranks: int
) -> Place:
    """The newest calibration that predicts its own left-out runs. A newer, weaker one is named and not used."""
    newest = matching[0]
    best = calibration_quality.best_of(catalog, matching)
    place = _calibrated(catalog, best, partition, transport, num_ranks)
    if best is newest:
        return place
    weakness = calibration_quality.doubt(catalog, newest) or "others used this machine when it was made"
    note = f"calibration {best.name} is used and not the newer {newest.name}: {weakness}"
    return replace(place, machine=replace(place.machine, assumptions=(*place.machine.assumptions, note)))


def _calibrated(
    catalog: Catalog, calibration: Calibration, partition: str | None, transport: str | None, num_ranks: int
) -> Place:
    if partition is not None and partition != calibration.partition:
        raise ConfigError(
            f"calibration {calibration.name} is of partition {calibration.partition!r}, not {partition!r}: "
            f"leave --partition out, or name the system {calibration.base}"
        )
    if transport is not None:
        raise ConfigError(f"calibration {calibration.name} measured one transport only: leave --transport out")
    machine = machine_from_calibration(catalog, calibration, num_ranks=num_ranks)
    storage = storage_here(calibration, own_storage(catalog, calibration.base))
    day = calibration.created.date().isoformat()
    disturbed = (
        f"calibration {calibration.name} was made while others used this machine: calibrate again when it is quiet"
        if calibration.is_disturbed
        else ""
    )
    doubt = calibration_quality.doubt(catalog, calibration)
    weak = (
        f"{WARNING}this prediction may be far off. Calibration {calibration.name} is a weak basis: {doubt}. Calibrate "
        "again when this machine is quiet, or with a longer --budget."
        if doubt
        else ""
    )
    return Place(
        machine=replace(machine, assumptions=(*machine.assumptions, *filter(None, [weak, storage.note, disturbed]))),
        system=calibration.base, basis=f"calibration {calibration.name} of {day}", calibration=calibration,
        storage=storage.entry, has_measured_storage=storage.is_measured, doubt=doubt,
        is_trusted=calibration_quality.is_trusted(catalog, calibration),
    )  # fmt: skip


def _unknown_machine(catalog: Catalog, fingerprint: Fingerprint, cluster: str) -> str:
    versions = versions_here()
    known = []
    for name in calibrations.names():
        try:
            known.append(f"{name} ({calibrations.why_not_here(calibrations.load(name), fingerprint, versions)})")
        except ConfigError as error:
            known.append(f"{name} (it cannot be read: {error})")
    listed = f"calibrations: {', '.join(known)}" if known else "there is no calibration yet"
    systems = ", ".join(catalog.ids("systems"))
    unknown_cluster = f"; the scheduler's cluster {cluster!r} is not catalogued" if cluster else ""
    return (
        f"this machine is not known ({fingerprint.name}, {fingerprint.num_cores} cores): {listed}{unknown_cluster}; "
        f"run scalewright calibrate, or set {EnvName.SYSTEM} or --system to one of {systems}"
    )


def base_system(catalog: Catalog, fingerprint: Fingerprint, named: str | None) -> tuple[str, str]:
    """System and partition that a calibration of this machine refines: as named, or the one that has its device."""
    if named is not None:
        system = catalog.system(named)
        return system.id, _partition_with(catalog, system, fingerprint)
    cluster = cluster_name(os.environ)
    candidates = (os.environ.get(EnvName.SYSTEM, ""), system_of_cluster(cluster) if cluster else "")
    for name in candidates:
        if name and folded(name) in {folded(known) for known in catalog.ids("systems")}:
            system = catalog.system(name)
            return system.id, _partition_with(catalog, system, fingerprint)
    if fingerprint.device == "cpu":
        system = catalog.system(PLAIN_CPU)
        return system.id, pick_partition(system, None).id
    try:
        device = catalog.accelerator(fingerprint.name).id
    except UnknownNameError as error:
        raise ConfigError(
            f"no catalogued device is called {fingerprint.name!r}: name the system to refine with --system, or add the "
            "device to the catalogue"
        ) from error
    for system in (catalog.system(i) for i in catalog.ids("systems") if i.startswith("generic-")):
        if pick_partition(system, None).accelerator == device:
            return system.id, pick_partition(system, None).id
    raise ConfigError(f"no generic system has {device}: name the system to refine with --system")


def default_name(catalog: Catalog, fingerprint: Fingerprint) -> str:
    """Default name of a calibration: the device, and how many there are."""
    if fingerprint.device == "cpu":
        return f"cpu-{fingerprint.num_cores}-cores"
    try:
        device = catalog.accelerator(fingerprint.name).id
    except UnknownNameError:
        device = re.sub(r"[^a-z0-9]+", "-", fingerprint.name.lower()).strip("-") or "gpu"
    return f"{device}-x{fingerprint.num_devices}"


def _partition_with(catalog: Catalog, system: System, fingerprint: Fingerprint) -> str:
    """The partition of a system whose device this is."""
    for partition in system.partitions:
        entry = catalog.accelerator(partition.accelerator)
        names = {folded(name) for name in (entry.id, entry.name, *entry.aliases)}
        if entry.kind == "cpu" if fingerprint.device == "cpu" else folded(fingerprint.name) in names:
            return partition.id
    raise ConfigError(
        f"no partition of {system.id} has {fingerprint.name}: name the system that this machine belongs to"
    )


def fingerprint_here(device: str = "auto") -> Fingerprint:
    """What distinguishes this machine from others, without PyTorch. `auto`: its GPUs where it has any."""
    gpus = [] if device == "cpu" else visible_gpus()
    processor = processor_here()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not gpus:  # a CPU is as wide as a scheduler or container lets it be
        return Fingerprint(
            device="cpu", name=processor, num_devices=1, processor=processor, num_cores=num_cores(),
            memory_bytes=memory_bytes,
        )  # fmt: skip
    return Fingerprint(
        device="cuda", name=gpus[0], num_devices=len(gpus), processor=processor, num_cores=os.cpu_count() or 1,
        memory_bytes=memory_bytes,
    )  # fmt: skip


def processor_here() -> str:
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return "CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def versions_here() -> dict[str, str]:
    """Versions that a calibration must share; PyTorch's without the build, and not where it is not installed."""
    versions = {"scalewright": __version__}
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions["torch"] = metadata.version("torch").partition("+")[0]
    return versions


def system_of_cluster(cluster: str) -> str:
    """Catalogued system of the cluster that calls itself so, by the site profiles; else its own name."""
    for path in site_files().values():
        with contextlib.suppress(ConfigError):
            site = load_site(path)
            if site.system is not None and cluster in {known.lower() for known in site.clusters}:
                return site.system
    return cluster


def cluster_name(env: Mapping[str, str]) -> str:
    """The scheduler's name of the cluster: from a job's environment, else from Slurm; empty where there is none."""
    name = env.get("SLURM_CLUSTER_NAME", "")
    if name:
        return name.lower()
    try:
        return ask_cluster_name()
    except EnvironmentFailedError:
        return ""
