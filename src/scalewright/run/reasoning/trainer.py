"""SequenceTrainer: trains a model on answered prompts of uneven length, over the ranks of a layout.

Model, optimizer and reduction are those of `bench language`. Losses count response tokens only, and are divided once
by a number that all ranks and micro-batches share, so that neither changes the gradient beyond rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError
from scalewright.run.checkpoint import OPTIONAL, Loaded
from scalewright.run.language.rotary import LayerConstants
from scalewright.run.language.session import LanguageSession, open_language_session
from scalewright.run.language.whole_weights import take_whole_weights
from scalewright.run.reasoning.batches import SequenceBatch, empty_batch
from scalewright.run.reasoning.lora import LORA_A, LORA_B, WEIGHT, is_adapter, lora_class, merged
from scalewright.run.reasoning.losses import SUMS, LossSums
from scalewright.run.reasoning.objectives import Objective
from scalewright.run.reasoning.scoring import scored
from scalewright.workload.language_run import LanguageRun, OptimizerSettings, RunPrecision
from scalewright.workload.layout import Layout
from scalewright.workload.reasoning.lora_settings import LoraSettings
from scalewright.workload.run_options import CompileMode

SEVERAL_MICRO_BATCHES = 2
"""How many micro-batches an update has is not known before; gradients are summed in fp32 as for more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """One update. Reading a tensor's value waits for the device."""

    loss: Tensor
    """Over all ranks and micro-batches."""
    grad_norm: Tensor
    """Before clipping."""
    sums: LossSums
    num_micro_batches: int
    is_skipped: bool = False
    """No token counted on any rank, so that nothing was changed."""

    @property
    def numbers(self) -> dict[str, float]:
        return self.sums.numbers()


class SequenceTrainer:
    """One rank's part. Every rank calls the same methods in the same order."""

    def __init__(self, session: LanguageSession, *, temperature: float = 1.0, lora: LoraSettings | None = None) -> None:
        self.session, self.temperature, self.lora = session, temperature, lora
        self.position, self.optimizer, self.step = session.position, session.optimizer, session.train_step
        self.device, self.dtype = session.position.device, session.numbers.compute

    @property
    def shape(self) -> TransformerShape:
        return self.session.run.shape

    @torch.no_grad()
    def log_probs(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """(N, R) log-probability of each response token and entropy before it, without gradient.

        Every rank must give a batch. Where ranks may have different numbers of them, call `log_probs_of`.
        """
        log_probs_T, entropy_T = self._scored(self.session.split.chunks[0], batch)
        return batch.aligned(log_probs_T), batch.aligned(entropy_T)

    def log_probs_of(self, batches: Sequence[SequenceBatch]) -> list[Tensor]:
        """(N, R) log-probabilities of each batch of this rank. Ranks with fewer batches repeat their first one, for
        weights that are gathered need every rank."""
        _, most = self._totals(0.0, len(batches))
        if most and not batches:
            raise ConfigError("log-probabilities need at least one micro-batch on every rank: give every rank some")
        values = [self.log_probs(batch)[0] for batch in batches]
        for _ in range(most - len(batches) if self.session.split.is_sharded else 0):
            self.log_probs(batches[0])
        return values

    def update(self, batches: Sequence[SequenceBatch], objective: Objective) -> UpdateResult:
        """Train once on all micro-batches of all ranks."""
        if not batches:
            raise ConfigError("an update needs at least one micro-batch on every rank: give every rank some sequences")
        weight, num_micro = self._totals(sum(objective.weight(*pair) for pair in enumerate(batches)), len(batches))
        if weight == 0.0:
            nothing = torch.zeros((), device=self.device)
            sums = LossSums(torch.zeros(len(SUMS), dtype=torch.float64))
            return UpdateResult(loss=nothing, grad_norm=nothing, sums=sums, num_micro_batches=0, is_skipped=True)
        self.step.begin()
        self.step.gradients.clear()
        total = torch.zeros((), device=self.device)
        sums_S = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        for number in range(num_micro):
            is_own = number < len(batches)
            batch = batches[number] if is_own else empty_batch(batches[0])
            with self.step.synchronisation(is_last=number == num_micro - 1):
                log_probs_T, entropy_T = self._scored(self.session.split.callables[0], batch)
                if is_own:
                    aligned = batch.aligned(log_probs_T), batch.aligned(entropy_T)
                    result = objective(number, batch, *aligned, denominator=weight)
                    loss = result.loss * self.position.num_replicas
                    sums_S += result.sums.values_S
                else:
                    loss = log_probs_T.sum() * 0.0
                torch.autograd.backward(loss * self.step.loss_scale.value)
            total += loss.detach()
        finished = self.step.finish(total)
        if dist.get_world_size() > 1:
            dist.all_reduce(sums_S)
        sums = LossSums(sums_S / int(self.position.layout.tp))
        return UpdateResult(loss=finished.loss, grad_norm=finished.grad_norm, sums=sums, num_micro_batches=num_micro)

    @torch.no_grad()
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole weights by their name in the whole model, one after the other, adapters merged into them. Every rank
        must take all of them."""
        params = self.stored_parameters()
        for name, param in params.items():
            stem = name.removesuffix(WEIGHT)
            if is_adapter(name):
                continue
            weight = _whole(param.detach().to(self.dtype))
            if self.lora is not None and stem + LORA_A in params:
                a, b = _whole(params[stem + LORA_A].detach()), _whole(params[stem + LORA_B].detach())
                weight = merged(weight, a, b, self.lora)
            yield name, weight

    @torch.no_grad()
    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
        """Take whole weights by name, every one of the model. Adapters and the optimizer's moments stay as they are."""
        targets = {
            name: self.optimizer.masters.get(name, param.detach())
            for name, param in self.stored_parameters().items()
            if not is_adapter(name)
        }
        take_whole_weights(targets, tensors, where=where)
        self.optimizer.refresh_weights()

    def stored_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter as this rank stores it, frozen ones too."""
        self._reshard()
        return self.session.split.all_parameters()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        tensors, own = self.optimizer.state(), f"{OPTIONAL}{dist.get_rank()}"
        tensors[f"{own}.random"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors[f"{own}.random_cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def state(self) -> dict[str, Any]:
        return {"num_updates": self.optimizer.num_updates, "loss_scale": self.step.loss_scale.state()}

    def restore(self, loaded: Loaded, tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint whose tensors were loaded into those that `tensors` gave."""
        own, state = f"{OPTIONAL}{dist.get_rank()}", loaded.manifest.state
        torch.set_rng_state(tensors[f"{own}.random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors[f"{own}.random_cuda"], self.device)
        self._reshard()
        self.optimizer.refresh_weights()
        try:
            self.optimizer.num_updates = int(state["num_updates"])
            self.step.loss_scale.restore(state["loss_scale"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{loaded.folder}: its state is not that of a trainer ({error}); resume from a checkpoint of one"
            ) from error

    def _scored(self, model: torch.nn.Module, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        tp = int(self.position.layout.tp)
        if batch.longest > self.shape.seq:
            raise ConfigError(
                f"a sequence has {batch.longest} tokens, and the model was opened for {self.shape.seq}: shorten it, or "
                "raise the longest prompt and answer"
            )
        score = partial(
            scored, slots_T=batch.slots_T, targets_T=batch.targets_T, temperature=self.temperature,
            group=self.position.mesh.get_group("tp") if tp > 1 else None,
        )  # fmt: skip
        outputs: tuple[Tensor, Tensor] = model(batch.tokens_BL, batch.rows, score)
        return outputs

    def _totals(self, weight: float, num_micro: int) -> tuple[float, int]:
        """The sum of weights over replicas, and the most micro-batches that a rank has."""
        if dist.get_world_size() == 1:
            return weight, num_micro
        total, most = torch.tensor([weight], dtype=torch.float64), torch.tensor([num_micro])
        dist.all_reduce(total)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return float(total) / int(self.position.layout.tp), int(most)

    def _reshard(self) -> None:
        """Let go of gathered weights, which a forward pass without a backward pass leaves behind."""
        for chunk in self.session.split.chunks:
            for module in chunk.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()


def open_trainer(
    shape: TransformerShape,
    layout: Layout,
    *,
    device: torch.device,
    precision: RunPrecision = "bf16",
    optimizer: OptimizerSettings | None = None,
    seed: int = 0,
    compile_mode: CompileMode = "off",
    temperature: float = 1.0,
    lora: LoraSettings | None = None,
    constants: LayerConstants | None = None,
    model_id: str = "reasoning",
) -> SequenceTrainer:
    """This rank's trainer. The process group must exist, and every rank must call this.

    `shape.seq` is the longest sequence that will be trained on. Batches of the layout play no part. `constants` are
    those of a pretrained model; without them, the weights must come from a run of ours.
    """
    for name in ("pp", "cp", "ep", "sp"):
        if int(getattr(layout, name)) > (0 if name == "sp" else 1):
            raise ConfigError(f"layout has {name}={int(getattr(layout, name))}: stages train with dp, tp and zero only")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"temperature {temperature} of the trained policy must be a finite number above 0")
    if lora is not None and int(layout.tp) > 1:
        raise ConfigError(f"LoRA with tp={layout.tp}: adapters are not split; choose tp=1, and zero=3 to save memory")
    if shape.positions == "learned" and shape.num_positions < shape.seq:
        shape = shape.model_copy(update={"num_positions": shape.seq})
    micro_batches = int(layout.dp) * SEVERAL_MICRO_BATCHES
    run = LanguageRun(
        model_id=model_id,
        shape=shape,
        layout=replace(layout, mbs=1, gbs=micro_batches),
        precision=precision,
        optimizer=optimizer or OptimizerSettings(),
        seed=seed,
        compile=compile_mode,
    )
    adapters = None if lora is None else lora_class(lora)
    session = open_language_session(run, device, adapters=adapters, constants=constants)
    return SequenceTrainer(session, temperature=temperature, lora=lora)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
