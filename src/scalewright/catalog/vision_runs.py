"""Published rates of vision training, one JSON object a line, in the form of `published.py`'s rows.

A row has `measured.images_per_s`. What it leaves open about the software follows from its framework, and is listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scalewright.catalog.facts import Strict
from scalewright.catalog.library import packaged_data
from scalewright.records.loader import load_toml, read_jsonl, validate

Code = Literal["eager", "compiled", "graphs"]
MIXED = ("amp", "mixed")
"""Words for 16-bit products beside 32-bit weights; which 16 bits, the framework says."""
WIDE = ("fp32", "tf32")


class _VisionPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class VisionRunModel(_VisionPart):
    name: str
    img: int = Field(default=224, gt=0)


class VisionRunHardware(_VisionPart):
    gpu: str
    gpus: int = Field(gt=0)
    gpus_per_node: int = Field(gt=0)
    inter_bw_gb_per_s_per_gpu: float | None = Field(default=None, alias="inter_bw_GBps_per_gpu", gt=0)


class VisionRunLayout(_VisionPart):
    micro_batch: int | None = Field(default=None, gt=0)
    """Images of a device; null where the source does not say."""
    channels_last: bool | None = None
    code: Code | None = None


class VisionRunMeasured(_VisionPart):
    images_per_s: float = Field(gt=0)
    """All devices together."""


class PublishedVisionRun(_VisionPart):
    """One training rate somebody published."""

    id: str
    source: str
    publication: str = ""
    """Rows of one document share it; empty: by the source."""
    framework: str = ""
    """A name in `vision_frameworks.toml`; empty: by the words in id and source."""
    model: VisionRunModel
    hardware: VisionRunHardware
    layout: VisionRunLayout = VisionRunLayout()
    dtype: str
    measured: VisionRunMeasured
    assumed: tuple[str, ...] = Field(default=(), strict=False)
    """Inputs that the source does not state and that were filled in."""

    @property
    def document(self) -> str:
        """What belongs to one publication: as the row says, else repository and first folder of the source."""
        repository, _, path = self.source.partition(" ")
        if self.publication or "@" not in repository:
            return self.publication or self.source
        name = repository.partition("@")[0]
        return name if name.startswith("mlcommons/") else f"{name} {path.partition('/')[0]}"


class VisionFramework(Strict):
    """How a framework runs a vision model."""

    words: tuple[str, ...]
    mixed: str
    code_16bit: Code
    channels_last_16bit: bool
    code_32bit: Code
    channels_last_32bit: bool
    library_norms: bool
    """In 16 bit its norms hold activation and sum, in kernels of the device's library."""
    source: str


class VisionFrameworks(Strict):
    schema_: str = Field(alias="schema")
    usual_batch: int = Field(gt=0)
    """Images of a device in configurations that do not print it."""
    frameworks: dict[str, VisionFramework]

    def of(self, run: PublishedVisionRun) -> str:
        """The framework of a row: as it says, by its words, else PyTorch."""
        if run.framework in self.frameworks:
            return run.framework
        text = f"{run.framework} {run.id} {run.source}".lower()
        matches = (name for name, framework in self.frameworks.items() if any(w in text for w in framework.words))
        return next(matches, "pytorch")


def vision_frameworks() -> VisionFrameworks:
    path = packaged_data() / "published" / "vision_frameworks.toml"
    return load_toml(path, VisionFrameworks, kind="vision-frameworks")


def packaged_vision_runs() -> Path:
    return packaged_data() / "published" / "vision_runs.jsonl"


def is_vision_row(row: dict[str, Any]) -> bool:
    """Whether a published row is a rate of images."""
    measured = row.get("measured")
    return isinstance(measured, dict) and "images_per_s" in measured


def vision_runs(path: Path | None = None) -> list[PublishedVisionRun]:
    """The vision rows of a file; default: those shipped."""
    file = path or packaged_vision_runs()
    return [
        validate(row, PublishedVisionRun, where=f"{file}, line {number}")
        for number, row in read_jsonl(file)
        if is_vision_row(row)
    ]
