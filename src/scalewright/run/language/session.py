"""Everything that trains, put together: model, optimizer, step; the same for a run, a benchmark and a test."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.run.graphs import GraphedStep
from scalewright.run.language.data import Loader, open_data
from scalewright.run.language.optimizer import AdamW
from scalewright.run.language.parallel import SplitModel, split_model, wrap_in_ddp
from scalewright.run.language.place import Place, local_positions, place
from scalewright.run.language.precision import Numbers, numbers
from scalewright.run.language.step import StepResult, TrainStep
from scalewright.workload.language_run import LanguageRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    run: LanguageRun
    place: Place
    numbers: Numbers
    split: SplitModel
    optimizer: AdamW
    train_step: TrainStep
    step: TrainStep | GraphedStep[StepResult]
    """What to call: the step, or its replay as a graph."""
    positions_L: Tensor

    def loader(self, *, first_step: int = 0) -> Loader:
        return Loader(open_data(self.run), self.run, self.place, self.positions_L, first_step=first_step)


def open_session(run: LanguageRun, device: torch.device) -> Session:
    """Build this rank's part; the process group exists already, and every rank calls this."""
    if run.compile == "graphs" and (device.type != "cuda" or int(run.layout.num_gpus) > 1):
        raise ConfigError("compile=graphs replays a step of one GPU: choose default for several ranks or the CPU")
    kinds, here = numbers(run, device), place(run.layout, device)
    split = split_model(run, here, kinds)
    optimizer = AdamW(split.parameters(), run.optimizer, weights=kinds.weights, skips=kinds.scales_loss)
    wrap_in_ddp(split, run, kinds)
    train_step = TrainStep(run, split, optimizer, kinds)
    positions = local_positions(run.seq_len, cp=int(run.layout.cp), cp_rank=here.cp_rank, device=device)
    return Session(
        run=run,
        place=here,
        numbers=kinds,
        split=split,
        optimizer=optimizer,
        train_step=train_step,
        step=GraphedStep(train_step) if run.compile == "graphs" else train_step,
        positions_L=positions,
    )
