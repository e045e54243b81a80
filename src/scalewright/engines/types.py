"""What every adapter takes and returns: a request, a job, and a refusal with the nearest layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scalewright import __version__
from scalewright.catalog.model_details import ModelDetails
from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import FULL, TrainingMode

Task = Literal["pretrain", "sft", "grpo", "generate"]
"""What an engine does with the model. `pretrain` needs no weights; the others start from some."""
Trains = Literal["language", "generation", "rl"]
EngineDevice = Literal["cuda", "cpu"]
StartedBy = Literal["ranks", "node", "ray"]
"""How a command is started: once for each rank (torchrun or srun give RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT), once on each node, or once beside the head of a Ray cluster over all nodes."""
SYNTHETIC = "synthetic"
"""As `data`: random tokens from the seed, so that no data set is needed."""
PlaceholderName = Literal["load", "data", "tokenizer", "engine-dir", "engine-python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptimizer:
    """The optimizer of an engine's run. `--set` changes them by their names."""

    learning_rate: float = 3e-4
    min_learning_rate: float = 3e-5
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    num_warmup_steps: int = 0


LEARNING_RATES: dict[Task, float] = {"pretrain": 3e-4, "sft": 1e-5, "grpo": 1e-6, "generate": 0.0}
"""Where a user gives none: usual values for a model of some billion parameters."""


def optimizer_of(task: Task) -> EngineOptimizer:
    """The usual settings of a task, decaying to a tenth."""
    return EngineOptimizer(learning_rate=LEARNING_RATES[task], min_learning_rate=LEARNING_RATES[task] / 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """How answers are generated between two updates."""

    tp: int
    pp: int
    num_prompts: int
    num_samples: int
    """Answers to each prompt."""
    prompt_len: int
    longest_len: int
    """Longest answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One model in one layout on so many devices, and what the run reads and writes.

    What is empty is not known yet: an adapter then leaves a placeholder, and `launch` refuses to submit.
    """

    spec: ModelSpec
    layout: Layout
    recipe: Recipe
    seq_len: int
    gpus_per_node: int
    num_gpus: int
    mode: TrainingMode = FULL
    task: Task = "pretrain"
    device: EngineDevice = "cuda"
    num_steps: int = 0
    """0: not known, as in `plan --emit`."""
    run_dir: Path = Path()
    """Full path of the run directory; files of the job are written into it."""
    data: str = ""
    """Path or name of the data set, in the engine's own form; `synthetic`: random tokens from the seed."""
    load: str = ""
    """Folder of the weights to start from."""
    tokenizer: str = ""
    """Folder or file of the tokenizer."""
    engine_dir: str = ""
    """Checkout of an engine that is no package, such as Megatron-LM."""
    engine_python: str = "python"
    """Interpreter of the environment that has the engine."""
    checkpoint_every: int = 0
    """Steps between two checkpoints; 0: only at the end and on a signal, where the engine has one."""
    rollout: RolloutPlan | None = None
    """How a reinforcing engine generates; None: the plan does not say it."""
    profile_steps: int = 0
    """Steps at the end that a profiler traces, where a program of ours starts the engine; 0: none."""
    optimizer: EngineOptimizer = EngineOptimizer()
    seed: int = 1234
    settings: Mapping[str, str] = field(default_factory=dict)
    """`--set key=value`: keys of the engine's own configuration; they come last and win."""
    extra_args: tuple[str, ...] = ()
    """Words after `--`, passed to the engine as they are."""

    def __post_init__(self) -> None:
        if self.layout.is_column:
            raise AssertionError("one layout is rendered at a time; use at(i)")
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
    def details(self) -> ModelDetails | None:
        """What of the model is no size: rotary base, norm epsilon, router. None: not known."""
        return self.spec.details

    @property
    def is_synthetic(self) -> bool:
        """Whether random tokens stand for the data, so that neither data nor tokenizer are needed."""
        return self.data == SYNTHETIC

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
    def checkpoint_dir(self) -> Path:
        """Where the engine saves, and resumes from."""
        return self.run_dir / "engine" / "checkpoints"

    @property
    def log_dir(self) -> Path:
        """Where the engine writes logs of its own, beside its output."""
        return self.run_dir / "engine" / "logs"

    @property
    def trace_dir(self) -> Path:
        """Where traces of steps lie, as those of our own trainer."""
        return self.run_dir / "traces"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """Something that the user has to give before the job can start."""

    name: PlaceholderName
    """The flag of `launch` and `bench engine`, without its dashes."""
    what: str
    """What it is, for a message: `tokenised data (prefix of .bin and .idx)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """An engine's run as text: nothing is written or started yet."""

    engine: str
    files: Mapping[str, str]
    """Text by path relative to the run directory, such as `engine/engine.json`."""
    command: tuple[str, ...]
    """Words of one process; files and folders are full paths."""
    started_by: StartedBy = "ranks"
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment of every process."""
    checkpoint_dir: Path = Path()
    saves_on_notice: bool = False
    """Whether it saves when it gets USR1 and then ends with 0 or 75; else the newest checkpoint is what remains."""
    resume: str = ""
    """How the next attempt goes on, in one sentence; empty: it starts over."""
    placeholders: tuple[Placeholder, ...] = ()
    """What is still missing; empty: the job can start."""
    notes: tuple[str, ...] = ()


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
class Refusal:
    """What of a request an engine cannot express, and the nearest layout that it can."""

    engine: str
    reason: str
    """One sentence: what, why, and what to change."""
    nearest: Layout | None
    """None: no layout helps, because the model, the precision or the task is refused."""

    @property
    def sentence(self) -> str:
        if self.nearest is None:
            return self.reason
        return f"{self.reason}; the nearest layout that it can is {self.nearest.brief}"


class EngineRefusedError(NotExpressedError):
    """An engine cannot express a request; `refusal` has the nearest layout."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.sentence)


def one_line(text: str) -> str:
    return " ".join(text.split())


def refusal(framework: str, knob: str, why: str, instead: str) -> NotExpressedError:
    """The sentence for what a framework cannot be told: nothing is dropped silently."""
    return NotExpressedError(f"{framework} cannot express {one_line(knob)}: {why}; {instead}")
