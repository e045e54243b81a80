"""LanguageSession: one rank's model, optimizer and step. Runs, benchmarks and tests build it with one function."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scalewright.data.tokens.samples import TokenSamples
from scalewright.errors import ConfigError
from scalewright.run.graphs import GraphedStep
from scalewright.run.language.data import Loader, open_data
from scalewright.run.language.mesh_position import MeshPosition, local_positions, mesh_position
from scalewright.run.language.model import LinearClass
from scalewright.run.language.optimizer import AdamW, cast
from scalewright.run.language.parallel import SplitModel, split_model, wrap_in_ddp
from scalewright.run.language.precision import Numbers, numbers
from scalewright.run.language.rotary import LayerConstants
from scalewright.run.language.step import LanguageStep, LanguageStepResult
from scalewright.workload.language_run import LanguageRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSession:
    run: LanguageRun
    position: MeshPosition
    numbers: Numbers
    split: SplitModel
    optimizer: AdamW
    train_step: LanguageStep
    step: LanguageStep | GraphedStep[LanguageStepResult]
    """What to call: the step, or its replay as a graph."""
    positions_L: Tensor

    def loader(
        self, *, first_step: int = 0, first_sample: int | None = None, data: TokenSamples | None = None
    ) -> Loader:
        """Batches from a step on. `first_sample` is given where the steps before had another batch."""
        return Loader(
            data or open_data(self.run), self.run, self.position, self.positions_L,
            first_step=first_step, first_sample=first_sample,
        )  # fmt: skip


def open_language_session(
    run: LanguageRun,
    device: torch.device,
    *,
    adapters: LinearClass | None = None,
    constants: LayerConstants | None = None,
) -> LanguageSession:
    """Build this rank's part. The process group must exist, and every rank must call this.

    `adapters` are linear layers of which only the adapters are trained. `constants` are those that a pretrained model
    has inside its norms and positions.
    """
    if run.compile == "graphs" and (device.type != "cuda" or int(run.layout.num_gpus) > 1):
        raise ConfigError("compile=graphs works on one GPU only: choose compile=default for several ranks or the CPU")
    kinds, position = numbers(run, device), mesh_position(run.layout, device)
    if adapters is not None:
        kinds = replace(kinds, linear=adapters, freezes_base=True)
    split = split_model(run, position, kinds, constants)
    for param in split.all_parameters().values():
        if not param.requires_grad:
            cast(param, kinds.weights)
    optimizer = AdamW(split.parameters(), run.optimizer, weights=kinds.weights, skips=kinds.scales_loss)
    wrap_in_ddp(split, run, kinds)
    train_step = LanguageStep(run, split, optimizer, kinds)
    positions = local_positions(run.seq_len, cp=int(run.layout.cp), cp_rank=position.cp_rank, device=device)
    return LanguageSession(
        run=run,
        position=position,
        numbers=kinds,
        split=split,
        optimizer=optimizer,
        train_step=train_step,
        step=GraphedStep(train_step) if run.compile == "graphs" else train_step,
        positions_L=positions,
    )
