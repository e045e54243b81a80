"""The request of a pre-flight check: written at launch, read by the ranks that check."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.errors import DocumentError
from scalewright.records.documents import document, read_document

REQUEST_KIND = "preflight-request"
RESULT_KIND = "preflight"
PAYLOAD_BYTES = {"cpu": 4 * units.MIB, "cuda": 64 * units.MIB}
"""Size of the warm-up collective: large enough to be bound by bandwidth, small enough for milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """Nominal values and limits. None or an empty text: unknown, so nodes are only compared with each other."""

    device: str = "auto"
    num_spares: int = 0
    """Nodes that may be left out."""
    system: str = ""
    """Where the nominal values come from."""
    transport: str = ""
    """Catalogue id of the transport between nodes that the job was rendered for."""
    nic_bytes_per_s: float | None = None
    """Nominal rate of one port of the fabric, one direction."""
    num_nics: int | None = None
    """Ports of the fabric that a node has."""
    node_s: float | None = None
    """Expected all-reduce of the payload among the ranks of one node."""
    pair_s: float | None = None
    """The same among the ranks of two nodes."""
    world_s: float | None = None
    """The same among all ranks."""
    folders: tuple[str, ...] = ()
    min_free_bytes: float = 1e9
    min_free_inodes: float = 10_000.0
    slow_ratio: float = 1.5
    """A node or device this many times slower than the others is reported."""
    deadline_s: float = 60.0
    """All ranks must arrive within this time, and finish within it again."""

    def as_document(self) -> dict[str, Any]:
        return document(REQUEST_KIND, asdict(self))


def read_request(path: Path) -> PreflightRequest:
    """The request in a run directory; the default one if there is none."""
    if not path.exists():
        return PreflightRequest()
    body = {k: v for k, v in read_document(path, REQUEST_KIND).items() if k != "schema"}
    unknown = sorted(set(body) - {field.name for field in fields(PreflightRequest)})
    if unknown:
        raise DocumentError(f"{path}: has an unknown key {unknown[0]!r}, perhaps of another release; launch again")
    try:
        return PreflightRequest(**{**body, "folders": tuple(body.get("folders", ()))})
    except TypeError as error:
        raise DocumentError(f"{path}: is not a whole pre-flight request ({error}); launch again") from error
