"""EngineRun: what a run of another training program was told, or what is known of a log that somebody else kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError
from scalewright.records.documents import check_schema, document
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.language_run import restored_shape, shape_document
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec

ENGINE_RUN, IMPORTED_RUN = "engine-run", "imported-run"
"""Kinds of configuration: a run that was started here, and one that was read from a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """A run of an engine. The same one resumes."""

    engine: str
    """Name of the engine; of an imported log, the program that wrote it."""
    version: str = ""
    """Its release; empty: not known."""
    model_id: str
    shape: TransformerShape
    layout: Layout
    precision: str
    task: str = "pretrain"
    steps: int = 0
    """0: as many as the log has."""
    device: str = "cuda"
    data: str = ""
    load: str = ""
    seed: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    """`--set key=value`."""
    extra_args: tuple[str, ...] = ()
    profile_steps: int = 0
    """Steps at the end that a profiler traces."""
    logs: tuple[str, ...] = ()
    """Of an imported run: the files that it was read from."""

    @property
    def num_ranks(self) -> int:
        return int(self.layout.num_gpus)

    @property
    def tokens_per_step(self) -> int:
        return int(self.layout.gbs) * self.shape.seq

    @property
    def step_flop(self) -> float:
        """Model FLOP of one step by the published formula (narayanan2021, without its recompute factor)."""
        spec = ModelSpec(id=self.model_id, name=self.model_id, shape=self.shape)
        return training_flop_per_sample(spec) * int(self.layout.gbs)

    def document(self) -> dict[str, Any]:
        body = asdict(self) | {"shape": shape_document(self.shape), "layout": str(self.layout)}
        body |= {"num_ranks": self.num_ranks, "extra_args": list(self.extra_args), "logs": list(self.logs)}
        return document(IMPORTED_RUN if self.logs else ENGINE_RUN, body)


def from_document(doc: dict[str, Any], *, where: str) -> EngineRun:
    """The run that `EngineRun.document` wrote for a run that was started here."""
    check_schema(doc.get("schema"), ENGINE_RUN, where=where)
    body = {key: value for key, value in doc.items() if key not in ("schema", "num_ranks")}
    if set(body) != {one.name for one in fields(EngineRun)}:
        odd = sorted(set(body) ^ {one.name for one in fields(EngineRun)})[0]
        raise ConfigError(
            f"{where}: key {odd!r} is {'unknown' if odd in body else 'missing'} in an {ENGINE_RUN}; run it again"
        )
    body["shape"] = restored_shape(body["shape"], where=where)
    body["layout"] = parse_layout(str(body["layout"]))
    body |= {name: tuple(body[name]) for name in ("extra_args", "logs")}
    return EngineRun(**body)
