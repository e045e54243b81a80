"""StorageRun and CheckpointRun: everything that decides a run of `bench storage` and of `bench checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.records.documents import document
from scalewright.records.loader import stored
from scalewright.workload.run_options import DeviceKind

StorageFormat = Literal["files", "shards", "lmdb", "squashfs", "ram"]
"""files: one per sample; shards: tar; lmdb: one memory-mapped file; squashfs: the files in one image,
mounted by squashfuse; ram: the files copied to a RAM disk."""
FORMATS: tuple[StorageFormat, ...] = get_args(StorageFormat)
SaveMode = Literal["sync", "async"]
SAVE_MODES: tuple[SaveMode, ...] = get_args(SaveMode)
MEAN_SAMPLE_BYTES = 110_000
"""An image of ImageNet."""
SMALLEST_SAMPLE_BYTES, FEWEST_SAMPLES = 64, 16
MOST_WORKERS = 256
READ_SIZES_BYTES = (128 * units.KIB, units.MIB, 8 * units.MIB)
SHORTEST_BUDGET_S = 1.0
SMALLEST_STATE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRun:
    """Reading a data set in each format, by several processes, from a cold and a warm cache; and metadata."""

    KIND: ClassVar[str] = "storage-run"
    path: str
    """Scratch folder on the storage that is measured; what is put there is removed again."""
    formats: tuple[StorageFormat, ...] = FORMATS
    size_bytes: int = 256 * units.MIB
    """Of the data set, once per format."""
    sample_bytes: int = MEAN_SAMPLE_BYTES
    """Of a sample, on average."""
    num_workers: tuple[int, ...] = (1,)
    """Processes that read at once, fewest first."""
    read_sizes_bytes: tuple[int, ...] = READ_SIZES_BYTES
    """Of one sequential read of shards."""
    num_metadata_files: int = 1000
    """Empty files that each process makes, looks at, opens and removes; 0: none."""
    seed: int = 0
    budget_s: float = 60.0

    def __post_init__(self) -> None:
        check_some("formats", self.formats, FORMATS)
        if self.sample_bytes < SMALLEST_SAMPLE_BYTES:
            raise ConfigError(f"samples of {self.sample_bytes} bytes: give {SMALLEST_SAMPLE_BYTES} bytes or more")
        if self.num_samples < FEWEST_SAMPLES:
            raise ConfigError(
                f"{self.size_bytes} bytes hold {self.num_samples} samples of {self.sample_bytes}: "
                f"give a --size for {FEWEST_SAMPLES} or more"
            )
        check_growing("workers", self.num_workers, most=min(MOST_WORKERS, self.num_samples))
        check_growing("read sizes", self.read_sizes_bytes, most=2**30)
        if self.num_metadata_files < 0:
            raise ConfigError(f"{self.num_metadata_files} files for metadata: give 0 or more")
        check_budget(self.budget_s)

    @property
    def num_samples(self) -> int:
        return self.size_bytes // self.sample_bytes

    @property
    def disk_formats(self) -> tuple[StorageFormat, ...]:
        """Those that the scratch folder holds; RAM and the SquashFS image are filled from the files."""
        kept = [name for name in self.formats if name != "ram"]
        needs_files = "files" not in kept and bool({"ram", "squashfs"} & set(self.formats))
        return tuple(["files", *kept] if needs_files else kept)

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRun:
    """Saving and restoring training state of some sizes, while training waits and while it continues."""

    KIND: ClassVar[str] = "checkpoint-run"
    path: str
    """Scratch folder on the storage that is measured; what is put there is removed again."""
    sizes_bytes: tuple[int, ...]
    """State of all ranks together, smallest first."""
    modes: tuple[SaveMode, ...] = SAVE_MODES
    repeats: int = 3
    """Saves of each size in each mode, where the budget allows; one is always made."""
    device: DeviceKind = "auto"
    budget_s: float = 60.0

    def __post_init__(self) -> None:
        check_some("modes", self.modes, SAVE_MODES)
        check_growing("sizes", self.sizes_bytes, least=SMALLEST_STATE_BYTES, most=2**60)
        if self.repeats < 1:
            raise ConfigError(f"{self.repeats} saves of each size: give 1 or more")
        if self.device not in get_args(DeviceKind):
            raise ConfigError(f"--device {self.device!r} is not known: choose cpu, cuda or auto")
        check_budget(self.budget_s)

    def document(self) -> dict[str, Any]:
        return document(self.KIND, stored(self))


def check_some(what: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    odd = [value for value in values if value not in known]
    if odd or not values or len(set(values)) != len(values):
        shown = repr(odd[0]) if odd else repr(list(values))
        raise ConfigError(f"{what} {shown}: name one or more of {', '.join(known)}, each once")


def check_growing(what: str, values: tuple[int, ...], *, least: int = 1, most: int) -> None:
    if not values or list(values) != sorted(set(values)) or not least <= values[0] <= values[-1] <= most:
        raise ConfigError(f"{what} {list(values)}: give each once, smallest first, from {least} to {most}")


def check_budget(budget_s: float) -> None:
    if not SHORTEST_BUDGET_S <= budget_s < float("inf"):
        raise ConfigError(f"a budget of {budget_s:g} s is too short to repeat anything: give --budget of 1 s or more")
