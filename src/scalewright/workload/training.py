"""How weights are trained, and how data reaches the step: what a layout does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from scalewright.catalog.types import Storage
from scalewright.errors import ConfigError

ModeName = Literal["full", "offload", "lora"]
MODE_TITLES: dict[ModeName, str] = {
    "full": "all weights, gradients and optimizer state on the devices",
    "offload": "all weights; optimizer state, and the reference model in RL, on the hosts",
    "lora": "frozen 16-bit weights; adapters with their gradients and optimizer state",
}
LORA_RANK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMode:
    """What of a model is trained, and where the state of it lives. Time and memory both follow from it."""

    name: ModeName = "full"
    lora_rank: int = LORA_RANK
    """Rank of the adapters; counts in mode lora only."""
    adapts_feed_forward: bool = True
    """Whether the feed-forward has adapters beside attention; counts in mode lora only."""

    def __post_init__(self) -> None:
        if self.lora_rank < 1:
            raise ConfigError(f"LoRA rank {self.lora_rank} must be 1 or more: 8 to 64 are usual")

    @property
    def is_lora(self) -> bool:
        return self.name == "lora"

    @property
    def is_offload(self) -> bool:
        return self.name == "offload"

    @property
    def title(self) -> str:
        return MODE_TITLES[self.name]

    def __str__(self) -> str:
        return f"lora rank {self.lora_rank}" if self.is_lora else self.name


def training_mode(name: str, *, lora_rank: int | None = None) -> TrainingMode:
    """The mode of that name; a rank belongs to lora only."""
    if name not in get_args(ModeName):
        raise ConfigError(f"there is no training mode {name!r}: choose {', '.join(get_args(ModeName))}")
    if lora_rank is not None and name != "lora":
        raise ConfigError(f"a LoRA rank of {lora_rank} means nothing in mode {name}: choose mode lora or leave it out")
    return TrainingMode(name=cast(ModeName, name), lora_rank=LORA_RANK if lora_rank is None else lora_rank)


FULL = TrainingMode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Where samples come from and checkpoints go, and how many processes bring them."""

    storage: Storage | None = None
    """None: reading is taken to be faster than any step."""
    epoch_storage: Storage | None = None
    """Where the images of an epoch lie; a vision step waits for `storage` only."""
    one_file_each: bool = False
    """Every sample is a file of its own; false: samples lie in shards."""
    num_loaders: int = 2
    """Loader workers for each device."""
    num_prefetched: int = 2
    """Batches each worker prepares ahead."""
    async_checkpoint: bool = False
    """A checkpoint is copied to host memory and written from there while training continues."""

    def __post_init__(self) -> None:
        if self.num_loaders < 1 or self.num_prefetched < 1:
            raise ConfigError(f"{self.num_loaders} loader workers with {self.num_prefetched} batches: give 1 or more")


TEXT = Feed()
