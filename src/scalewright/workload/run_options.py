"""Options that several kinds of run share, and the checks of their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from scalewright.errors import ConfigError

CompileMode = Literal["off", "default", "max-autotune", "graphs"]
StepProtocol = Literal["steady", "epicure"]
DeviceKind = Literal["auto", "cpu", "cuda"]
SYNTHETIC = "synthetic"
AUTO = "auto"


class CommonTrainingOptions(Protocol):
    """What every run that trains has, whatever its model."""

    @property
    def seed(self) -> int: ...

    @property
    def compile(self) -> CompileMode: ...

    @property
    def checkpoint_every(self) -> int | Literal["auto"]: ...

    @property
    def device_mttf_s(self) -> float: ...

    @property
    def device(self) -> DeviceKind: ...


def check_literals(run: object, choices: Mapping[str, Any]) -> None:
    """Refuse a field whose value is not among those of its Literal."""
    for name, allowed in choices.items():
        value = getattr(run, name)
        if value not in get_args(allowed):
            raise ConfigError(f"{name} {value!r} is not known: choose {', '.join(get_args(allowed))}")


def check_training(run: CommonTrainingOptions, *, num_ranks: int) -> None:
    """Refuse values that no run can train with."""
    if not 0 <= run.seed < 2**63:
        raise ConfigError(f"seed {run.seed} must be from 0 up to 2^63")
    every = run.checkpoint_every
    if every != AUTO and (not isinstance(every, int) or every < 0):
        raise ConfigError(f"checkpoint_every is {every!r}: give steps, 0 for none, or auto")
    if not run.device_mttf_s > 0:
        raise ConfigError(f"device_mttf_s is {run.device_mttf_s}: a mean time to failure is above 0 s")
    if run.compile == "graphs" and (run.device == "cpu" or num_ranks > 1):
        raise ConfigError("compile=graphs replays a step of one GPU: choose default for several ranks or the CPU")


def has_tensors(folder: Path) -> bool:
    """Whether the folder is a model of Hugging Face's: a config.json, and safetensors beside it."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
