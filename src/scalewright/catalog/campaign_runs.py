"""Published whole training runs: what planned GPU-hours are held against."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from scalewright.catalog.facts import Id, Source, Strict, link_sources
from scalewright.catalog.library import packaged_data
from scalewright.records.loader import load_toml


class CampaignRun(Strict):
    """One whole run: what was trained on what, and the GPU-hours that its authors report."""

    id: Id
    family: Id
    """Runs of one team and report, which are left out together."""
    source: Source
    model: str
    """Catalogue name or shape."""
    seq: int | None = Field(default=None, gt=0)
    """Tokens per sample; absent: the model's own."""
    precision: str = "bf16"
    stack: str = "auto"
    """Software of the time: `eager-unfused` for runs without fused attention."""
    system: Id | None = None
    """Catalogued system; absent: nodes of `gpu` on a network of `network_per_gpu`."""
    gpu: Id
    gpus_per_node: int = Field(default=8, gt=0)
    num_gpus: int = Field(gt=0)
    network_per_gpu: str = "200 Gbit/s"
    """Line rate, as text with its unit."""
    global_batch: int = Field(gt=0)
    tokens: str
    num_gpu_hours: float = Field(gt=0)
    counts: str
    """What the hours hold: `charged` for all that the devices were held, `running` for time while steps ran."""
    layout: str | None = None
    """As published; absent: the source gives none."""
    assumed: str = ""
    """Inputs that the source does not state and that were filled in."""

    @field_validator("counts")
    @classmethod
    def _says_which(cls, value: str) -> str:
        if not value.startswith(("charged", "running")):
            raise ValueError(f"{value!r} must start with charged or running")
        return value


class _CampaignFile(Strict):
    schema_: str = Field(alias="schema")
    runs: tuple[CampaignRun, ...]
    sources: dict[str, Source]


def campaign_runs(path: Path | None = None) -> tuple[CampaignRun, ...]:
    """The shipped runs, or those of a file in the same form."""
    file = packaged_data() / "published" / "campaign_runs.toml" if path is None else path
    return load_toml(file, _CampaignFile, kind="campaign-runs", prepare=link_sources).runs
