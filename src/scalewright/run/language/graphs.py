"""A whole step as one CUDA graph: small models are bound by the time that launching thousands of kernels takes."""

from __future__ import annotations

import torch
from torch import Tensor

from scalewright.run.language.step import StepResult, TrainStep

WARM_UP_STEPS = 3
"""Real steps that run before the capture: kernels are compiled and libraries choose their algorithms in them."""


class GraphedStep:
    """Runs the first steps as they are, records one, and replays it from then on."""

    def __init__(self, step: TrainStep) -> None:
        self._step, self._num_calls = step, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> StepResult:
        self._num_calls += 1
        if self._num_calls <= WARM_UP_STEPS:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                result = self._step(tokens_BL, targets_BL)
            torch.cuda.current_stream().wait_stream(self._side)
            return result
        if self._graph is None:
            self._capture(tokens_BL, targets_BL)
        assert self._graph is not None
        self._tokens.copy_(tokens_BL)
        self._targets.copy_(targets_BL)
        self._step.optimizer.set_scalars()
        self._step.before_update()  # the update is inside the graph
        self._graph.replay()
        self._step.optimizer.num_updates += 1
        return self._result

    def _capture(self, tokens_BL: Tensor, targets_BL: Tensor) -> None:
        """Record the step; recording computes nothing."""
        self._tokens, self._targets = tokens_BL.clone(), targets_BL.clone()
        self._step.gradients.clear()
        torch.cuda.empty_cache()  # the graph keeps memory of its own
        updates = self._step.optimizer.num_updates
        graph = torch.cuda.CUDAGraph()
        hold, self._step.before_update = self._step.before_update, lambda: None
        with torch.cuda.graph(graph):
            self._result = self._step.finish(self._step.forward_backward(self._tokens, self._targets))
        self._step.before_update = hold
        self._step.optimizer.num_updates = updates
        self._graph = graph
