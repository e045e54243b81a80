"""A whole step as one CUDA graph: in small models, launching thousands of kernels takes longer than running them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
WARM_UP_STEPS = 3
"""Real steps before the capture, in which kernels are compiled and libraries choose their algorithms."""


class Capturable(Protocol[R_co]):
    """A training step in two parts: `begin`, which differs from step to step, and `work`, which never changes."""

    before_update: Callable[[], None]

    def __call__(self, samples: Tensor, targets: Tensor, /) -> R_co: ...

    def begin(self) -> None:
        """Update the host's counts, and the numbers that recorded kernels read from fixed addresses."""
        ...

    def work(self, samples: Tensor, targets: Tensor, /) -> R_co:
        """Forward, backward and update, without reading a value from the device."""
        ...

    def forget(self) -> None:
        """Drop the gradients, so that the graph allocates them in its own memory."""
        ...


class GraphedStep(Generic[R]):
    """Runs the first steps directly, records one, and replays it from then on."""

    def __init__(self, step: Capturable[R]) -> None:
        self._step, self._num_calls = step, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, samples: Tensor, targets: Tensor) -> R:
        self._num_calls += 1
        if self._num_calls <= WARM_UP_STEPS:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                result = self._step(samples, targets)
            torch.cuda.current_stream().wait_stream(self._side)
            return result
        if self._graph is None:
            self._capture(samples, targets)
        assert self._graph is not None
        self._samples.copy_(samples)
        self._targets.copy_(targets)
        self._step.begin()
        self._step.before_update()  # the update is inside the graph
        self._graph.replay()
        return self._result

    def _capture(self, samples: Tensor, targets: Tensor) -> None:
        """Record the step; recording computes nothing."""
        self._samples, self._targets = samples.clone(), targets.clone()
        self._step.forget()
        torch.cuda.empty_cache()  # the graph keeps memory of its own
        graph = torch.cuda.CUDAGraph()
        before_update, self._step.before_update = self._step.before_update, lambda: None
        with torch.cuda.graph(graph):
            self._result = self._step.work(self._samples, self._targets)
        self._step.before_update = before_update
        self._graph = graph
