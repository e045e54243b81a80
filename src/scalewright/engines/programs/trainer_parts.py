"""What runs of Hugging Face's Trainer and of TRL share: arguments, the time of a step in its report, and the end."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import torch
from engine_setup import Notice
from step_traces import StepTraces
from transformers import TrainerCallback

FSDP_FROM_ZERO = 2
"""ZeRO stages that FSDP stands for; below it every rank has all weights."""


def training_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments of TrainingArguments that follow from the run's file; its section `trainer` comes last and wins."""
    layout, optimizer = config["layout"], config["optimizer"]
    every, on_cpu = int(config["checkpoint"]["every"]), config["device"] == "cpu"
    arguments: dict[str, Any] = {
        "output_dir": config["checkpoint"]["folder"],
        "max_steps": int(config["steps"]),
        "per_device_train_batch_size": int(layout["mbs"]),
        "gradient_accumulation_steps": int(config["num_micro_batches"]),
        "learning_rate": float(optimizer["learning_rate"]),
        "lr_scheduler_type": "constant_with_warmup" if int(optimizer["num_warmup_steps"]) else "constant",
        "warmup_steps": int(optimizer["num_warmup_steps"]),
        "adam_beta1": float(optimizer["beta1"]),
        "adam_beta2": float(optimizer["beta2"]),
        "adam_epsilon": float(optimizer["epsilon"]),
        "weight_decay": float(optimizer["weight_decay"]),
        "max_grad_norm": float(optimizer["clip_norm"]),
        "bf16": config["precision"] == "bf16",
        "seed": int(config["seed"]),
        "logging_steps": 1,
        "logging_first_step": True,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "steps" if every else "no",
        "save_steps": every or 500,
        "save_total_limit": int(config["checkpoint"]["keep"]),
        "use_cpu": on_cpu,
        "optim": "adamw_torch",
        "gradient_checkpointing": layout.get("recompute", "none") == "full",
    }
    if on_cpu:
        arguments["ddp_backend"] = "gloo"
    return arguments | dict(config.get("trainer") or {})


class StepTimes(TrainerCallback):
    """Adds the number and the time of the step to what the Trainer prints, and traces steps that the run names.

    A step lasts from the end of the one before it, so that loading its samples counts.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._begun_s, self._took_s = time.perf_counter(), 0.0
        self._traces, self._tracing = StepTraces(config), contextlib.ExitStack()
        self._notice, self.is_stopped = Notice(), False

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._begun_s = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, control
        self._tracing.enter_context(self._traces.step(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the host may be a step ahead
        self._took_s = time.perf_counter() - self._begun_s
        self._tracing.close()
        if self._notice.is_given(args.device) and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = self.is_stopped = True
        self._begun_s = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        del args, control
        if logs is not None and "loss" in logs:
            logs.setdefault("step_time", self._took_s)
            logs["step"] = state.global_step

    def end(self, state: Any) -> None:
        """After training: a run that was asked to stop ends so that it is queued again."""
        if self.is_stopped:
            self._notice.leave(state.global_step)


def last_checkpoint(config: dict[str, Any]) -> str | None:
    """Folder of the newest checkpoint of this run."""
    folder = Path(config["checkpoint"]["folder"])
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    steps = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"checkpoint-(\d+)", name)))
    return str(folder / f"checkpoint-{steps[-1]}") if steps else None


def end_group() -> None:
    """Without it a rank that ends first makes the others wait."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
