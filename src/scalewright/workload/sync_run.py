"""SyncRun: everything that decides a run of `bench sync`: weights from trainer ranks to engine ranks, by three ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError
from scalewright.records.documents import check_schema, document
from scalewright.workload.language_run import restored_shape, shape_document
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.run_options import DeviceKind
from scalewright.workload.storage_run import check_budget, check_some

SyncWayName = Literal["peers", "broadcast", "file"]
WAY_NAMES: tuple[SyncWayName, ...] = get_args(SyncWayName)
SyncPrecision = Literal["fp32", "bf16"]
WIDTH_BYTES: dict[SyncPrecision, int] = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRun:
    """Ranks of the trainer come first, then those of the engines, copy by copy."""

    KIND: ClassVar[str] = "sync-run"
    model_id: str
    shape: TransformerShape
    path: str
    """Folder that a sync by file goes through."""
    layout: Layout
    """Of the trainer: dp, zero and tp."""
    engine_tp: int = 1
    num_engines: int = 1
    precision: SyncPrecision = "bf16"
    """Of the weights on the wire."""
    sync_ways: tuple[SyncWayName, ...] = WAY_NAMES
    repeats: int = 3
    """Syncs by each way, where the budget allows; one is always made."""
    seed: int = 0
    device: DeviceKind = "auto"
    """Where the trainer's weights lie."""
    budget_s: float = 60.0

    def __post_init__(self) -> None:
        check_some("ways", self.sync_ways, WAY_NAMES)
        for name in ("pp", "cp", "ep", "sp"):
            if int(getattr(self.layout, name)) > (0 if name == "sp" else 1):
                raise ConfigError(
                    f"layout has {name}={int(getattr(self.layout, name))}: trainers of stages have dp, tp and zero only"
                )
        for name in ("engine_tp", "num_engines", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('num_', '')} is {getattr(self, name)}: give 1 or more")
        if self.precision not in get_args(SyncPrecision):
            raise ConfigError(f"precision {self.precision!r} is not known: choose {', '.join(get_args(SyncPrecision))}")
        if self.device not in get_args(DeviceKind):
            raise ConfigError(f"--device {self.device!r} is not known: choose cpu, cuda or auto")
        for degree, tp in (("layout tp", int(self.layout.tp)), ("engine tp", self.engine_tp)):
            odd = next((key for key in ("heads", "kv_heads", "ffn_hidden") if getattr(self.shape, key) % tp), None)
            if odd is not None:
                raise ConfigError(
                    f"{degree}={tp} does not divide {odd} of {getattr(self.shape, odd)}: choose a divisor"
                )
        check_budget(self.budget_s)

    @property
    def num_trainers(self) -> int:
        return int(self.layout.dp) * int(self.layout.tp)

    @property
    def layout_text(self) -> str:
        """What of the layout plays a part."""
        return f"dp={int(self.layout.dp)},zero={self.layout.zero},tp={int(self.layout.tp)}"

    @property
    def num_engine_ranks(self) -> int:
        return self.num_engines * self.engine_tp

    @property
    def num_ranks(self) -> int:
        return self.num_trainers + self.num_engine_ranks

    def memory_bytes(self, num_params: int) -> float:
        """Most that all ranks hold together: parts and what is served of them; whole copies of a broadcast."""
        weights = float(num_params * WIDTH_BYTES[self.precision])
        copies = int(self.layout.dp) if self.layout.zero == 0 else 1
        has_broadcast = "broadcast" in self.sync_ways
        return weights * (2 * copies + self.num_engine_ranks * (1 + has_broadcast) + has_broadcast)

    def document(self) -> dict[str, Any]:
        body = asdict(self) | {"shape": shape_document(self.shape), "layout": str(self.layout)}
        return document(self.KIND, body | {"sync_ways": list(self.sync_ways)})


def from_document(doc: Mapping[str, Any], *, where: str) -> SyncRun:
    """The run that `SyncRun.document` wrote."""
    check_schema(doc.get("schema"), SyncRun.KIND, where=where)
    body = {key: value for key, value in doc.items() if key != "schema"}
    if set(body) != {one.name for one in fields(SyncRun)}:
        raise ConfigError(f"{where}: has other keys than a {SyncRun.KIND} of this version: choose another --run-dir")
    shape, layout = restored_shape(body["shape"], where=where), parse_layout(str(body["layout"]))
    return SyncRun(**body | {"shape": shape, "layout": layout, "sync_ways": tuple(body["sync_ways"])})
