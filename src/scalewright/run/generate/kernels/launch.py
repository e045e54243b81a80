"""Launch of kernels: each starts while the one before it still ends, and many are compiled at once.

Source  programmatic dependent launch: NVIDIA, CUDA C++ Programming Guide, section of that name (compute capability 9.0)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a Triton without it, or for another vendor
    gdc_launch_dependents = gdc_wait = None

AsyncCompileMode: Any = getattr(triton, "AsyncCompileMode", None)
"""None in older versions."""
LEAST_CAPABILITY = (9, 0)
LEAST_CUDA = (12, 3)
"""Older ones do not record such launches in graphs."""
MOST_COMPILERS = 16
_is_compiling_only: ContextVar[bool] = ContextVar("_is_compiling_only", default=False)


@cache
def overlaps(device: torch.device) -> bool:
    """Whether kernels on this device may start before the one before them has ended."""
    if device.type != "cuda" or torch.version.cuda is None or gdc_wait is None:
        return False
    cuda = tuple(int(part) for part in torch.version.cuda.split(".")[:2])
    return cuda >= LEAST_CUDA and torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


def launch(kernel: Any, grid: tuple[int, ...], device: torch.device, *arguments: Any, **options: Any) -> None:
    """Launch a kernel whose last arguments are its compile-time ones, OVERLAP among them."""
    is_overlapped, is_compiled_only = overlaps(device), _is_compiling_only.get()
    if is_compiled_only and AsyncCompileMode is None:
        return  # it is compiled at its first launch
    if is_overlapped:
        options["launch_pdl"] = True
    kernel.run(*arguments, grid=grid, warmup=is_compiled_only, OVERLAP=is_overlapped, **options)


@contextmanager
def compiling_only() -> Iterator[None]:
    """Inside, launches compile their kernels, many at a time, and run nothing. Kernels that do not compile are left."""
    previous = _is_compiling_only.set(True)
    try:
        with ExitStack() as stack:
            if AsyncCompileMode is not None:
                pool = stack.enter_context(ThreadPoolExecutor(min(MOST_COMPILERS, os.cpu_count() or 1)))
                stack.enter_context(AsyncCompileMode(pool, ignore_errors=True))
            yield
    finally:
        _is_compiling_only.reset(previous)


@triton.jit
def start_next_kernel(OVERLAP: tl.constexpr, IS_TIME: tl.constexpr):
    """The next kernel may start as soon as every program of this one came here: it waits itself for what it reads.

    Programs that wait take room, so that a long kernel that starts early is spread unevenly over the device.
    """
    if OVERLAP and IS_TIME:
        gdc_launch_dependents()


@triton.jit
def wait_for_kernel_before(OVERLAP: tl.constexpr):
    """Every program waits here before it reads what a kernel of the same step wrote, and before it writes."""
    if OVERLAP:
        gdc_wait()
