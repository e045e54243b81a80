"""One training step: forward, backward, reduction, clipping, update; in one process or through a pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from scalewright.run.language.gradients import Gradients
from scalewright.run.language.optimizer import AdamW
from scalewright.run.language.parallel import SplitModel
from scalewright.run.language.precision import Numbers
from scalewright.run.loss_scale import LossScale
from scalewright.workload.language_run import LanguageRun

if TYPE_CHECKING:
    from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageStepResult:
    """What a step returns, still on the device."""

    loss: Tensor
    """Mean over the global batch, the same on every rank."""
    grad_norm: Tensor
    """Of the whole gradient before clipping."""
    num_tokens: int
    """Tokens whose loss this rank computed."""


class LanguageStep:
    """Calls the model on a batch and updates it. Every rank calls it with its own samples."""

    def __init__(self, run: LanguageRun, split: SplitModel, optimizer: AdamW, numbers: Numbers) -> None:
        self.run, self.split, self.optimizer, self.position = run, split, optimizer, split.position
        self.gradients = Gradients(run, split)
        self.num_micro = int(run.layout.num_micro_batches)
        self.loss_scale = LossScale(split.position.device, scales=numbers.scales_loss)
        self._loss = loss_of_split_scores if int(run.layout.tp) > 1 else loss_of_scores
        if run.compile != "off" and int(run.layout.tp) == 1:
            self._loss = torch.compile(loss_of_scores)
        self._num_tokens = 0
        self.before_update: Callable[[], None] = lambda: None
        """Called when the gradients are ready, before the weights change: a save may still read the weights."""
        self._schedule = self._pipeline() if int(run.layout.pp) > 1 else None

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> LanguageStepResult:
        """Train on the samples of this rank, micro-batch by micro-batch."""
        self.begin()
        with self._contexts():
            loss = self.forward_backward(tokens_BL, targets_BL)
        return self.finish(loss)

    def begin(self) -> None:
        self.optimizer.begin()

    def work(self, tokens_BL: Tensor, targets_BL: Tensor) -> LanguageStepResult:
        """The step as a graph records it. It runs on one GPU, which needs no contexts."""
        return self.finish(self.forward_backward(tokens_BL, targets_BL))

    def forget(self) -> None:
        self.gradients.clear()

    def forward_backward(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        """Fill the gradients of the parameters and return the mean loss of this rank's samples."""
        self._num_tokens = 0
        self.gradients.clear()
        if self._schedule is not None:
            return self._through_pipeline(tokens_BL, targets_BL)
        total = torch.zeros((), device=self.position.device)
        pairs = zip(tokens_BL.chunk(self.num_micro), targets_BL.chunk(self.num_micro), strict=True)
        for number, (tokens, targets) in enumerate(pairs, start=1):
            with self.synchronisation(is_last=number == self.num_micro):
                loss = self._scaled_loss(self.split.callables[0](tokens), targets)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total / self.loss_scale.value

    def finish(self, loss: Tensor) -> LanguageStepResult:
        """Reduce, clip and update."""
        grads = self.gradients.collect()
        sums = torch.stack((self.gradients.square_norm(grads), loss.float()))
        if dist.get_world_size() > 1:
            dist.all_reduce(sums)
        unscale = 1.0 / self.loss_scale.value
        grad_norm = sums[0].sqrt() * unscale
        mean_loss = sums[1] / (self.position.num_replicas * int(self.run.layout.tp))
        limit = self.run.optimizer.clip_norm
        factor = (limit / (grad_norm + 1e-6)).clamp(max=1.0) if limit else torch.ones_like(grad_norm)
        overflowed = self.loss_scale.overflowed(grad_norm)
        self.before_update()
        self.optimizer.apply(grads, factor * unscale, overflowed=overflowed)
        self.loss_scale.after(overflowed)
        return LanguageStepResult(loss=mean_loss, grad_norm=grad_norm, num_tokens=self._num_tokens)

    def _scaled_loss(self, scores_BLV: Tensor, targets_BL: Tensor) -> Tensor:
        self._num_tokens += targets_BL.numel()
        if int(self.run.layout.tp) > 1:
            mesh = self.position.mesh["tp"]
            scores_BLV = DTensor.from_local(scores_BLV, mesh, [Shard(2)], run_check=False)
        loss: Tensor = self._loss(scores_BLV, targets_BL)
        return loss * (self.loss_scale.value / self.num_micro)

    @contextlib.contextmanager
    def _contexts(self) -> Iterator[None]:
        """Loss over split scores, and ring attention on GPUs: both patch what the backward pass calls too."""
        with contextlib.ExitStack() as stack:
            if int(self.run.layout.tp) > 1:
                stack.enter_context(loss_parallel())
            if int(self.run.layout.cp) > 1 and self.position.device.type == "cuda":
                # The batch is split already; the context needs a buffer to learn the sequence length from.
                length = torch.empty(1, self.run.seq_len, device=self.position.device)
                stack.enter_context(
                    context_parallel(
                        self.position.context_mesh["cp"],
                        buffers=[length],
                        buffer_seq_dims=[1],
                        no_restore_buffers={length},
                    )
                )
            yield

    @contextlib.contextmanager
    def synchronisation(self, *, is_last: bool) -> Iterator[None]:
        """Reduce gradients after the last micro-batch only; ZeRO 2 and 3 keep shards, so after each."""
        module, zero = self.split.callables[0], self.run.layout.zero
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(is_last or zero >= 2)
            module.set_reshard_after_backward(is_last or zero == 3)
        if isinstance(module, DistributedDataParallel) and not is_last:
            with module.no_sync():
                yield
        else:
            yield

    def _pipeline(self) -> Schedule1F1B | ScheduleInterleaved1F1B:
        # Imported here because it brings PyTorch's compiler: nearly a second that only a pipeline is worth.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

        position, num_chunks = self.position, int(self.run.layout.pp) * int(self.run.layout.vpp)
        pipeline_stages = [
            PipelineStage(module, index, num_chunks, position.device, group=position.pipeline_group)
            for index, module in zip(self.split.chunk_indices, self.split.callables, strict=True)
        ]
        options: dict[str, Any] = {"n_microbatches": self.num_micro, "loss_fn": self._scaled_loss, "scale_grads": False}
        if len(pipeline_stages) > 1:
            return ScheduleInterleaved1F1B(list(pipeline_stages), **options)
        return Schedule1F1B(pipeline_stages[0], **options)

    def _through_pipeline(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        assert self._schedule is not None
        losses: list[Tensor] = []
        inputs = (tokens_BL,) if self.position.is_first_pipeline_rank else ()
        last: dict[str, Any] = {"target": targets_BL, "losses": losses} if self.position.is_last_pipeline_rank else {}
        self._schedule.step(*inputs, **last, return_outputs=False)
        if not losses:
            return torch.zeros((), device=self.position.device)
        return torch.stack([loss.detach() for loss in losses]).sum() / self.loss_scale.value


def loss_of_scores(scores_BLV: Tensor, targets_BL: Tensor) -> Tensor:
    """Mean cross-entropy in fp32."""
    return functional.cross_entropy(scores_BLV.flatten(0, 1).float(), targets_BL.flatten())


def loss_of_split_scores(scores_BLV: Tensor, targets_BL: Tensor) -> Tensor:
    """The same over scores whose vocabulary is split, under `loss_parallel`."""
    loss = loss_of_scores(scores_BLV, targets_BL)
    return loss.full_tensor() if isinstance(loss, DTensor) else loss
