"""VisionRun: everything that decides a run of the vision benchmark, resolved. The same one resumes a run.

It is written by `bench` and by studies, read by `run`, and imports neither torch nor the code that it configures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

from scalewright import units
from scalewright.catalog.facts import Source
from scalewright.catalog.types import ConvBlock, ConvShape
from scalewright.errors import ConfigError
from scalewright.records.documents import check_schema, document
from scalewright.records.loader import restore, stored
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.run_options import (
    SYNTHETIC,
    CompileMode,
    DeviceKind,
    StepProtocol,
    check_literals,
    check_training,
)

KIND = "vision-run"
VisionPrecision = Literal["fp32", "tf32", "fp16", "bf16"]
MadeFormat = Literal["folder", "shards", "lmdb"]
MADE = "made"
RAM = "ram"
SMALLEST_IMAGE = 32
"""Below it, the last stage of a four-stage network has nothing left to convolve."""
EPICURE_EPOCHS = 5
EPICURE_COUNTED = 3
"""EPICURE trains five epochs and takes its figures from the fourth, counted from 0 here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeBatchRecipe:
    """SGD whose rate grows with the batch.

    Source    goyal2017 (arXiv:1706.02677): section 2.1 linear scaling, 2.2 gradual warm-up, 5.1 the rest
    """

    base_rate: float = 0.1
    """For `base_batch` images a step; another batch has it in proportion."""
    base_batch: int = 256
    warmup_epochs: float = 5.0
    """The rate climbs over these, step by step, from the base rate to the scaled one; a smaller batch needs none."""
    momentum: float = 0.9
    weight_decay: float = 1e-4
    """Not of the norms' coefficients, as the source says; of all other parameters."""
    decay_epochs: tuple[int, ...] = (30, 60, 80)
    decay_frac: float = 0.1
    label_smoothing: float = 0.0
    """Share of the target spread over all classes; 0 as in the source."""

    def __post_init__(self) -> None:
        if not (self.base_rate > 0 and self.base_batch > 0 and 0 < self.decay_frac <= 1):
            raise ConfigError("the base rate, its batch and the decay must be above 0, the decay at most 1")
        if self.warmup_epochs < 0 or self.weight_decay < 0:
            raise ConfigError("warm-up epochs and weight decay must be 0 or more")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum {self.momentum}: give 0 or more, below 1")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label smoothing {self.label_smoothing}: give 0 or more, below 1; 0.1 is usual")

    def rate(self, *, epochs_done: float, global_batch: int) -> float:
        """Learning rate once `epochs_done` (a fraction within an epoch) have passed.

        Equation  k h for a batch of k n images; over the first w epochs from h to k h; a tenth of it after each step
        Source    goyal2017 (arXiv:1706.02677), sections 2.1, 2.2 and 5.1
        Assumes   the update is w -= rate x v with v = m v + g (its equation 9), so that momentum needs no correction
                  when the rate changes
        Checked   tests/workload/test_vision_run.py: 0.1 at first and 3.2 after the warm-up for 8,192 images
        """
        scaled = self.base_rate * global_batch / self.base_batch
        if epochs_done < self.warmup_epochs:
            start = min(self.base_rate, scaled)
            return start + (scaled - start) * epochs_done / self.warmup_epochs
        return scaled * self.decay_frac ** sum(epochs_done >= epoch for epoch in self.decay_epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionRun:
    """One run of the vision benchmark."""

    model_id: str
    blocks: tuple[int, ...]
    width: int
    num_classes: int
    image_size: int
    num_ranks: int
    batch: int
    """Images a rank takes per step; the same however many ranks there are."""
    epochs: int
    steps_per_epoch: int
    block: ConvBlock = "bottleneck"
    precision: VisionPrecision = "bf16"
    """fp16 and bf16: automatic mixed precision, weights and sums in 32 bit; tf32: products rounded to TF32."""
    recipe: LargeBatchRecipe = field(default_factory=LargeBatchRecipe)
    seed: int = 0
    data: str = SYNTHETIC
    """`synthetic` (images that lie on the device), `made` (JPEG images made on the spot), or a data set's folder."""
    made_format: MadeFormat = "lmdb"
    num_made: int = 0
    """Training images that are made, where data is `made`."""
    passes_per_epoch: int = 1
    """Times that an epoch reads every image; EPICURE reads TinyImageNet 13 times."""
    copy_to: str = ""
    """Copy the data set first: `ram` (/dev/shm), or a folder of a node-local disk; empty: read it where it is."""
    num_workers: int = 2
    """Processes of a rank that decode images."""
    validates: bool = True
    """Score the held-out images after every epoch; synthetic images have none."""
    channels_last: bool = True
    compile: CompileMode = "off"
    """torch.compile: off; default; max-autotune; graphs (default, and the whole step replayed as one CUDA graph)."""
    checkpoint_every: int | Literal["auto"] = 0
    """Steps; 0: only when asked to stop; auto: from the failure model and the measured time of a save."""
    checkpoint_async: bool = True
    checkpoint_keep: int = 2
    device_mttf_s: float = 50_000.0 * units.HOUR_S
    """Mean time to failure of one device, for checkpoint_every=auto."""
    protocol: StepProtocol = "steady"
    """Which steps count: steady; or epicure, those of the fourth of five epochs but its first and last."""
    profile_steps: int = 2
    keep_trace: bool = False
    device: DeviceKind = "auto"

    def __post_init__(self) -> None:
        check_literals(self, _CHOICES)
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name in ("num_workers", "num_made", "profile_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 0 or more")
        if not self.blocks or min(self.blocks) < 1:
            raise ConfigError(f"blocks {list(self.blocks)}: every stage of a residual network has 1 or more")
        if self.image_size < SMALLEST_IMAGE or self.image_size % 2:
            raise ConfigError(f"image size {self.image_size}: give an even number of {SMALLEST_IMAGE} or more")
        check_training(self, num_ranks=self.num_ranks)
        self._check_together()

    def _check_together(self) -> None:
        if self.data == MADE and self.num_made < 1:
            raise ConfigError("data is made on the spot, but of how many images? give --images")
        if self.copy_to and self.data == SYNTHETIC:
            raise ConfigError(
                f"--copy-to {self.copy_to}: synthetic images lie on the device; give --data, or leave it out"
            )
        if self.precision == "tf32" and self.device == "cpu":
            raise ConfigError("precision tf32 needs a GPU that has it, and this runs on the CPU: choose fp32 or bf16")
        if self.protocol == "epicure" and self.epochs <= EPICURE_COUNTED:
            raise ConfigError(f"protocol epicure counts the fourth epoch, and there are {self.epochs}: give --epochs 5")
        if self.protocol == "epicure" and self.steps_per_epoch < 3:
            raise ConfigError(
                f"protocol epicure leaves out an epoch's first and last step, and there are {self.steps_per_epoch}: "
                "give more --steps, or a smaller batch"
            )

    @property
    def shape(self) -> ConvShape:
        source = Source(kind="assumed", text="the run's configuration", checked=date.min)
        return ConvShape(
            source=source, block=self.block, blocks=self.blocks, width=self.width, num_classes=self.num_classes,
            image_size=self.image_size,
        )  # fmt: skip

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(id=self.model_id, name=self.model_id, shape=self.shape)

    @property
    def layout(self) -> Layout:
        return Layout(dp=self.num_ranks, mbs=self.batch, gbs=self.global_batch)

    @property
    def global_batch(self) -> int:
        return self.num_ranks * self.batch

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def step_flop(self) -> float:
        """Model FLOP of one step of all ranks: three times the forward pass."""
        return training_flop_per_sample(self.spec) * self.global_batch

    def rate(self, step: int) -> float:
        return self.recipe.rate(epochs_done=step / self.steps_per_epoch, global_batch=self.global_batch)

    def document(self) -> dict[str, Any]:
        return document(KIND, stored(self))


_CHOICES: dict[str, Any] = {
    "block": ConvBlock,
    "precision": VisionPrecision,
    "made_format": MadeFormat,
    "compile": CompileMode,
    "protocol": StepProtocol,
    "device": DeviceKind,
}
_AT_LEAST_ONE = (
    "width", "num_classes", "num_ranks", "batch", "epochs", "steps_per_epoch", "passes_per_epoch", "checkpoint_keep",
)  # fmt: skip


def from_document(doc: dict[str, Any], *, where: str) -> VisionRun:
    """The run that `VisionRun.document` wrote."""
    check_schema(doc.get("schema"), KIND, where=where)
    return restore({key: value for key, value in doc.items() if key != "schema"}, VisionRun, where=where)
