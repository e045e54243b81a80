"""Trainer and engine on the same devices, of which one at a time has its state there.

While answers are written, the trainer's moments, master weights and gradients are on the host or gone. While it trains,
the engine's keys and values, and the graphs that read them, are gone. Weights of both stay.
"""

from __future__ import annotations

from typing import Literal

from scalewright.run.generate.engine import Engine
from scalewright.run.reasoning.parts import StageClock
from scalewright.run.reasoning.trainer import SequenceTrainer
from scalewright.run.state_release import CalledPart, PartMoved, ReleasedPart, StateRelease, StoredTensors

Owner = Literal["trainer", "engine"]


def trainer_release(trainer: SequenceTrainer) -> StateRelease:
    """The state that only updates need."""
    optimizer, gradients = trainer.optimizer, trainer.step.gradients

    def drop_gradients() -> int:
        num_bytes = sum(param.grad.nbytes for param in gradients.params.values() if param.grad is not None)
        gradients.clear()
        return num_bytes

    parts: list[ReleasedPart] = [
        CalledPart("gradients", drop_gradients),
        StoredTensors("gradient_sums", gradients.sums, keeping="zeroed"),
        StoredTensors("moments", lambda: [*optimizer.means.values(), *optimizer.squares.values()]),
        StoredTensors("master_weights", optimizer.masters.values),
    ]
    return StateRelease(parts, device=trainer.device)


def engine_release(engine: Engine) -> StateRelease:
    """The state that only decoding needs. Answers that are open are read again afterwards."""
    parts: list[ReleasedPart] = [
        CalledPart("graphs", engine.forget_cache),
        StoredTensors("kv_cache", engine.cache_tensors, keeping="zeroed"),
    ]
    return StateRelease(parts, device=engine.device)


class CoLocated:
    """Whose turn it is. What a change moved is in `moved`, part by part, for the record."""

    def __init__(self, trainer: SequenceTrainer, clock: StageClock) -> None:
        self._clock = clock
        self._states: dict[Owner, StateRelease] = {"trainer": trainer_release(trainer)}
        self.moved: dict[str, list[PartMoved]] = {"release": [], "restore": []}

    def add_engine(self, engine: Engine) -> None:
        """Called once the engine is open, in its own turn."""
        self._states["engine"] = engine_release(engine)

    def turn(self, owner: Owner) -> None:
        """Release what the other holds, then restore what this one needs. Nothing happens in its own turn."""
        others = [state for name, state in self._states.items() if name != owner]
        if any(not state.is_released for state in others):
            with self._clock.part("release"):
                for state in others:
                    self.moved["release"] += state.release()
        own = self._states.get(owner)
        if own is not None and own.is_released:
            with self._clock.part("restore"):
                self.moved["restore"] += own.restore()

    def note(self) -> str:
        """What the changes took, on average."""
        return "; ".join(f"{what} {_means(moved)}" for what, moved in self.moved.items() if moved)


def _means(moved: list[PartMoved]) -> str:
    times_s: dict[str, list[float]] = {}
    for one in moved:
        times_s.setdefault(one.name, []).append(one.seconds)
    shown = (f"{name.replace('_', ' ')} {sum(own) / len(own):.3g} s" for name, own in times_s.items())
    return ", ".join(shown)
