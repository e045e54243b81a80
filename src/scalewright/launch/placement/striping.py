"""How a parallel file system spreads a folder's files, as `lfs`, `mmlsattr` or `beegfs-ctl` report it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalewright import units
from scalewright.data.room import file_system_type
from scalewright.errors import QuantityError

Technology = Literal["lustre", "gpfs", "beegfs", "other"]
TIMEOUT_S = 20.0
ALL_TARGETS = -1
_COMPONENT = re.compile(
    r"lcme_extent\.e_end:\s*(?P<end>\S+)|(?:lmm_)?stripe_count:\s*(?P<count>-?\d+)|(?:lmm_)?stripe_size:\s*(?P<size>\d+)"
)
_BLOCK = re.compile(r"^\s*-B\s+(\d+)", re.MULTILINE)
_REPLICAS = re.compile(r"^data replication:\s*(\d+)", re.MULTILINE)
_TARGETS = re.compile(r"Number of storage targets:.*?(\d+)")
_CHUNK = re.compile(r"Chunksize:\s*(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeComponent:
    """Striping of a part of a file; a plain layout has one."""

    end_bytes: float
    """Infinite for the last."""
    stripe_count: int
    """Storage targets; -1: all."""
    stripe_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Striping:
    """What is known about a folder's file system."""

    technology: Technology
    file_system: str
    """As the kernel names it."""
    components: tuple[StripeComponent, ...] = ()
    """Of new files in the folder; empty: not known."""
    num_targets: int | None = None
    """Storage targets of the whole file system."""
    block_bytes: int | None = None
    """GPFS: of a block; BeeGFS: of a chunk."""
    num_replicas: int | None = None
    tool: str = ""
    """The program that answered; empty: none did, and only the kernel's name is known."""

    def count_at(self, size_bytes: float) -> int | None:
        """Targets of a file of this size."""
        return next((part.stripe_count for part in self.components if size_bytes <= part.end_bytes), None)

    @property
    def is_progressive(self) -> bool:
        return len(self.components) > 1


def read_striping(folder: Path) -> Striping:
    """Ask the file system's own program, where one is installed and answers for this folder."""
    kind = file_system_type(folder)
    text = _output("lfs", "getstripe", "-d", str(folder))
    if text is not None and parse_getstripe(text):
        targets = (_output("lfs", "df", str(folder)) or "").count("[OST:")
        return Striping(
            technology="lustre", file_system=kind, components=parse_getstripe(text), num_targets=targets or None,
            tool="lfs",
        )  # fmt: skip
    text = _output("mmlsattr", "-L", str(folder))
    if text is not None:
        block = _BLOCK.search(_output("mmlsfs", "all", "-B") or "")
        replicas = _REPLICAS.search(text)
        return Striping(
            technology="gpfs", file_system=kind, block_bytes=int(block[1]) if block else None,
            num_replicas=int(replicas[1]) if replicas else None, tool="mmlsattr",
        )  # fmt: skip
    text = _output("beegfs-ctl", "--getentryinfo", str(folder))
    if text is not None and _TARGETS.search(text):
        return _beegfs(text, kind)
    return Striping(technology=_technology(kind), file_system=kind)


def parse_getstripe(text: str) -> tuple[StripeComponent, ...]:
    """Components of `lfs getstripe`, plain or progressive, of a folder or a file."""
    components: list[StripeComponent] = []
    end_bytes, count = float("inf"), None
    for match in _COMPONENT.finditer(text):
        if match["end"] is not None:
            end_bytes = float(match["end"]) if match["end"].isdigit() else float("inf")
        elif match["count"] is not None:
            count = int(match["count"])
        elif count is not None:
            # 0 stands for the file system's default, which is one target unless the site says otherwise.
            part = StripeComponent(end_bytes=end_bytes, stripe_count=count or 1, stripe_bytes=int(match["size"]))
            components.append(part)
            end_bytes, count = float("inf"), None
    return tuple(sorted(components, key=lambda part: part.end_bytes))


def _beegfs(text: str, kind: str) -> Striping:
    targets, chunk = _TARGETS.search(text), _CHUNK.search(text)
    assert targets is not None
    chunk_bytes = 0
    if chunk is not None:
        word = chunk[1].upper().rstrip("IB")
        try:
            chunk_bytes = int(units.parse(f"{word} B" if word.isdigit() else f"{word[:-1]} {word[-1]}iB", units.BYTES))
        except QuantityError:
            chunk_bytes = 0
    part = StripeComponent(end_bytes=float("inf"), stripe_count=int(targets[1]), stripe_bytes=chunk_bytes)
    return Striping(
        technology="beegfs", file_system=kind, components=(part,), block_bytes=chunk_bytes or None, tool="beegfs-ctl"
    )


def _technology(kind: str) -> Technology:
    for name in ("lustre", "gpfs", "beegfs"):
        if name in kind:
            return name
    return "other"


def _output(*argv: str) -> str | None:
    """What the program prints, or None: it is not installed, fails for this folder, or does not answer."""
    program = shutil.which(argv[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *argv[1:]], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
