"""Train a Hugging Face model with DeepSpeed: ZeRO 0 to 3, on the samples of the run's file.

    python train_deepspeed.py --config engine/engine.json

DeepSpeed prints no loss. The lines of steps have the form of its pipeline engine, with loss and time.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from engine_setup import (
    Notice,
    TokenWindows,
    hugging_face_model,
    leave,
    num_ranks,
    parameter_groups,
    rank,
    read_config,
    say,
)
from step_traces import StepTraces


def deepspeed_config(config: dict[str, Any]) -> dict[str, Any]:
    """The section `deepspeed` of the run's file, with what follows from the rest of it."""
    layout = config["layout"]
    body = dict(config.get("deepspeed") or {})
    body.setdefault("train_batch_size", int(layout["gbs"]))
    body.setdefault("train_micro_batch_size_per_gpu", int(layout["mbs"]))
    body.setdefault("gradient_accumulation_steps", int(config["num_micro_batches"]))
    body.setdefault("gradient_clipping", float(config["optimizer"]["clip_norm"]))
    body.setdefault("zero_optimization", {"stage": int(layout["zero"])})
    body.setdefault("steps_per_print", 1)
    # An optimizer of DeepSpeed's own would be compiled first; the program gives PyTorch's.
    body.pop("optimizer", None)
    body.pop("scheduler", None)
    body["zero_allow_untested_optimizer"] = True
    if config["precision"] == "bf16":
        body.setdefault("bf16", {"enabled": True})
    return body


def show_log() -> None:
    """DeepSpeed logs warnings only, unless its logger and every handler of it are told otherwise."""
    from deepspeed.utils import logger

    logger.setLevel(logging.INFO)
    for handler in logger.handlers:
        handler.setLevel(logging.INFO)
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stdout)


def main() -> None:
    config = read_config()
    on_cpu = config["device"] == "cpu"
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
        os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    import deepspeed

    if on_cpu:
        # Exchange in shared memory would be compiled first, for minutes; Gloo does it.
        # The module by its name: as an attribute of its package it is PyTorch itself.
        importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    show_log()
    deepspeed.init_distributed(dist_backend="gloo" if on_cpu else "nccl", verbose=False)
    settings = config["optimizer"]
    model = hugging_face_model(config)
    model.train()
    optimizer = torch.optim.AdamW(
        parameter_groups(model, float(settings["weight_decay"])), lr=float(settings["learning_rate"]),
        betas=(float(settings["beta1"]), float(settings["beta2"])), eps=float(settings["epsilon"]),
    )  # fmt: skip
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(config))
    samples = TokenWindows(config)
    first = resume(engine, config)
    say(f"{first} of {config['steps']} steps done; {num_ranks()} ranks, deepspeed {deepspeed.__version__}")
    train(engine, samples, config, first)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def resume(engine: Any, config: dict[str, Any]) -> int:
    """Load the newest checkpoint of this run; how many steps are done."""
    folder = config["checkpoint"]["folder"]
    if not (Path(folder) / "latest").is_file():
        return 0
    engine.load_checkpoint(folder)
    return int(engine.global_steps)


def train(engine: Any, samples: TokenWindows, config: dict[str, Any], first: int) -> None:
    every, folder = int(config["checkpoint"]["every"]), config["checkpoint"]["folder"]
    num_micro, steps = int(config["num_micro_batches"]), int(config["steps"])
    traces, notice = StepTraces(config), Notice()
    for step in range(first, steps):
        with traces.step(step):
            started_s = time.perf_counter()
            total = torch.zeros((), device=engine.device)
            for micro in range(num_micro):
                window = torch.from_numpy(samples.micro_batch(step, micro, rank())).to(engine.device)
                logits = engine(input_ids=window[:, :-1], use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), window[:, 1:].flatten())
                engine.backward(loss)
                engine.step()
                total += loss.detach() / num_micro
            torch.distributed.all_reduce(total)
            value = float(total) / num_ranks()
            took_s = time.perf_counter() - started_s
        rate = samples.gbs / took_s
        say(f"steps: {step + 1} loss: {value:.6f} iter time (s): {took_s:.6f} samples/sec: {rate:.4f}")
        is_asked = notice.is_given(engine.device)
        if is_asked or (every and (step + 1) % every == 0):
            engine.save_checkpoint(folder)
        if is_asked and step + 1 < steps:
            notice.leave(step + 1)


if __name__ == "__main__":
    main()
    leave()
