"""Pools of ranks that all meshes of their size share: processes start and join once, and take one job after the other.

A size has ranks of its own, because PyTorch remembers meshes by their shape: a process that left a group and joined
another would meet the first one again in its caches.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import traceback
import warnings
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

TIMEOUT_S = 240.0
PRELOADED = ["scalewright.run.language.train", "torch.distributed.pipelining"]
"""Imported once for all ranks; pipelining brings PyTorch's compiler, which takes as long as half of PyTorch."""


class RankPool:
    """Runs `module:function(arguments)` on the given number of ranks and returns the result of each."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._ranks: dict[int, list[tuple[ForkServerProcess, Connection]]] = {}

    def run(self, function: str, *arguments: Any, num_ranks: int) -> list[Any]:
        if num_ranks not in self._ranks:
            self._ranks[num_ranks] = self._start(num_ranks)
        pipes = [pipe for _, pipe in self._ranks[num_ranks]]
        for pipe in pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(TIMEOUT_S):
                raise AssertionError(f"rank {rank} did not answer within {TIMEOUT_S:.0f} s")
            answers.append(pipe.recv())
        problems = [text for is_fine, text in answers if not is_fine]
        if problems:
            raise AssertionError(problems[0])
        return [value for _, value in answers]

    def close(self) -> None:
        started = [pair for pairs in self._ranks.values() for pair in pairs]
        for _, pipe in started:
            pipe.send(None)
        for process, _ in started:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()

    def _start(self, num_ranks: int) -> list[tuple[ForkServerProcess, Connection]]:
        port, started = free_port(), []
        for rank in range(num_ranks):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, rank, num_ranks, port), daemon=True)
            process.start()
            started.append((process, ours))
        return started


def _serve(pipe: Connection, rank: int, num_ranks: int, port: int) -> None:
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    while (job := pipe.recv()) is not None:
        function, arguments = job
        module, _, name = function.partition(":")
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(*arguments)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()[-3000:]}"))
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
