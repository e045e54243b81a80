"""What every emitter takes and returns, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright import __version__
from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import FULL, TrainingMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """A framework's own configuration for one layout."""

    framework: str
    version: str
    """Release whose parser knows every key of `text`."""
    filename: str
    text: str
    """The whole file."""
    notes: tuple[str, ...]
    """What the file cannot hold: how to launch it, and what the user still has to give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitRequest:
    """One model in one layout on so many devices."""

    spec: ModelSpec
    layout: Layout
    recipe: Recipe
    seq_len: int
    gpus_per_node: int
    num_gpus: int
    mode: TrainingMode = FULL

    def __post_init__(self) -> None:
        if self.layout.is_column:
            raise AssertionError("one layout is emitted at a time; use at(i)")
        if int(self.layout.num_gpus) != self.num_gpus:
            raise ConfigError(
                f"layout {self.layout.brief} takes {self.layout.num_gpus} devices, not {self.num_gpus}: "
                "make dp x tp x pp x cp the number of devices"
            )
        if self.num_gpus % self.num_nodes:
            raise ConfigError(
                f"{self.num_gpus} devices do not spread evenly over {self.num_nodes} nodes of {self.gpus_per_node}: "
                "launchers start as many processes on each node, use whole nodes"
            )

    @property
    def shape(self) -> TransformerShape:
        return self.spec.transformer

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // self.gpus_per_node)

    @property
    def num_local_gpus(self) -> int:
        """Processes per node."""
        return self.num_gpus // self.num_nodes

    @property
    def num_micro_batches(self) -> int:
        return int(self.layout.num_micro_batches)

    @property
    def header(self) -> list[str]:
        """Lines for a comment; each is one line, even if a model's name has line breaks."""
        return [
            f"Written by scalewright {__version__} for {one_line(self.spec.id)}, sequence {self.seq_len}, "
            f"{self.recipe.name}" + ("" if self.mode == FULL else f", {self.mode}"),
            f"layout {self.layout}",
        ]

    @property
    def torchrun(self) -> str:
        return f"torchrun --nnodes {self.num_nodes} --nproc-per-node {self.num_local_gpus}"

    def layers_of_chunks(self) -> list[int]:
        """Layers per chunk of the pipeline in the order of the model, chunk i on stage i modulo pp.

        As the cost model splits them: the first stages take what does not divide.
        """
        num_chunks = int(self.layout.pp) * int(self.layout.vpp)
        even, extra = divmod(self.shape.layers, num_chunks)
        return [even + (chunk < extra) for chunk in range(num_chunks)]


def one_line(text: str) -> str:
    return " ".join(text.split())


def refusal(framework: str, knob: str, why: str, instead: str) -> NotExpressedError:
    """The sentence for what a framework cannot be told: nothing is dropped silently."""
    return NotExpressedError(f"{framework} cannot express {one_line(knob)}: {why}; {instead}")
