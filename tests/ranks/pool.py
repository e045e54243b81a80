"""One pool of ranks for all meshes: processes start once, import torch once, and take one job after the other."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

NUM_RANKS = 4
TIMEOUT_S = 240.0


class RankPool:
    """Runs `module:function(arguments)` on the first `num_ranks` ranks at once and returns what each gave back."""

    def __init__(self, num_ranks: int = NUM_RANKS) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scalewright.run.language.train"])  # torch is imported once for all
        self._size = 0
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: str, *arguments: Any, num_ranks: int) -> list[Any]:
        port = free_port() if num_ranks != self._size else 0  # another size is another group, for all who join it
        self._size = num_ranks
        for pipe in self._pipes[:num_ranks]:
            pipe.send((function, arguments, num_ranks, port))
        answers = []
        for rank, pipe in enumerate(self._pipes[:num_ranks]):
            if not pipe.poll(TIMEOUT_S):
                raise AssertionError(f"rank {rank} did not answer within {TIMEOUT_S:.0f} s")
            answers.append(pipe.recv())
        problems = [text for is_fine, text in answers if not is_fine]
        if problems:
            raise AssertionError(problems[0])
        return [value for _, value in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()


def _serve(pipe: Connection, rank: int) -> None:
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        function, arguments, num_ranks, port = job
        try:
            if port:
                if dist.is_initialized():
                    dist.destroy_process_group()
                address = f"tcp://127.0.0.1:{port}"
                dist.init_process_group("gloo", init_method=address, rank=rank, world_size=num_ranks)
            module, _, name = function.partition(":")
            pipe.send((True, getattr(importlib.import_module(module), name)(*arguments)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()[-3000:]}"))
    if dist.is_initialized():
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
