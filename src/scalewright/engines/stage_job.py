"""A plan of stage rl or generate as the plan of an engine's job: its layout, its generator, its lengths, its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scalewright.engines.info import EngineInfo
from scalewright.engines.types import EngineRefusedError, RolloutPlan
from scalewright.errors import ConfigError, DocumentError, NotExpressedError
from scalewright.records.documents import digest
from scalewright.workload.layout import Layout
from scalewright.workload.rl import parse_rl

STAGE_PLAN = "stage-plan"
TASKS = {"rl": "grpo", "generate": "generate"}
"""The task of an engine that runs a stage."""
ASSUMED_STEPS = 100
"""Of reinforcement, whose plan has no length."""
SERVING_S = 3600.0
"""A server runs until the time limit; without --time for so long."""
FIXED = ("tp", "pp", "cp", "zero", "recompute")
"""Knobs that `plan --fix` sets; others follow from them."""
CHECKPOINT_EVERY = 20
CHECKPOINT_WRITE_S = 60.0


def is_stage_plan(doc: Mapping[str, Any]) -> bool:
    return str(doc.get("schema", "")).startswith(f"scalewright.{STAGE_PLAN}/")


def plan_of_stage(doc: Mapping[str, Any], info: EngineInfo, *, where: str) -> dict[str, Any]:
    """A document with the keys of a plan. A stage that the engine does not run is refused with those that do."""
    stage = str(doc.get("stage"))
    if stage not in TASKS or TASKS[stage] not in info.tasks:
        others = {"rl": "--engine verl or trl", "generate": "--engine vllm"}.get(stage, "plan stage rl or generate")
        does = " and ".join(info.tasks)
        raise NotExpressedError(f"{where}: is a plan of stage {stage}, and {info.title} does {does} here: use {others}")
    choice = _choice(doc, info, stage, where=where)
    try:
        body, layout = doc["input"], Layout(**choice["layout"])
        num_gpus, per_node = int(choice["num_gpus"]), int(body["gpus_per_node"])
        step_s, slowest_s = float(choice["step_time_s"]), float(choice["step_time_interval_s"][1])
        num_steps, whole_s = (0, SERVING_S) if stage == "generate" else (ASSUMED_STEPS, ASSUMED_STEPS * slowest_s)
        best = {
            "stage": stage, "model": doc["model"], "layout_text": str(layout), "step_time_s": step_s,
            "input": {"shape": body["shape"], "precision": body["precision"], "mode": doc["mode"], "stack": info.stack,
                      "machine": {"gpus_per_node": per_node}},
        }  # fmt: skip
        return {
            "id": digest(dict(doc)), "system": doc["system"], "num_gpus": num_gpus, "fits": True, "best": best,
            "num_nodes": -(-num_gpus // per_node), "model_details": body.get("model_details"),
            "task": TASKS[stage], "seq_len": _seq_len(str(doc["request"])),
            "rollout": _rollout(str(doc["request"]), choice) if stage == "rl" else None,
            "whole_run": {
                "num_steps": num_steps, "time_interval_s": [whole_s, whole_s], "device_time_s": whole_s * num_gpus,
                "checkpoint": {"every_num_steps": CHECKPOINT_EVERY if num_steps else 0, "write_s": CHECKPOINT_WRITE_S},
            },
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DocumentError(f"{where}: is not a complete plan ({error!r}); make it again with plan --out") from error


def _choice(doc: Mapping[str, Any], info: EngineInfo, stage: str, *, where: str) -> Mapping[str, Any]:
    """The fastest way that the engine can run: trainer and generator take turns on the same devices."""
    choices = doc.get("choices")
    if not isinstance(choices, list) or not choices or not doc.get("fits"):
        raise ConfigError(f"{where}: has no way that fits: plan again with more nodes, then launch that plan")
    if stage == "generate":
        return dict(choices[0])
    for one in choices:
        generator = one.get("generator", {})
        if generator.get("num_gpus") == one.get("num_gpus") and not one.get("token_budget"):
            return dict(one)
    raise NotExpressedError(
        f"{where}: every way of it has devices for the generator alone or a token budget, and {info.title} takes turns "
        "on the same devices here: plan again with a larger --top, so that the way `on policy` is in it"
    )


def _seq_len(request: str) -> int | None:
    """Prompt and longest answer; None where the lengths are a distribution."""
    written = dict(part.split("=", 1) for part in request.split(",") if "=" in part)
    prompt, answer = written.get("prompt", ""), written.get("longest", written.get("response", ""))
    return int(prompt) + int(answer) if prompt.isdecimal() and answer.isdecimal() else None


def _rollout(request: str, choice: Mapping[str, Any]) -> RolloutPlan:
    step, generator = parse_rl(request), choice["generator"]
    return RolloutPlan(
        tp=int(generator["tp"]), pp=int(generator["pp"]), num_prompts=step.num_prompts,
        num_samples=step.num_responses, prompt_len=step.prompt_len,
        longest_len=step.longest_len or step.response_len,
    )  # fmt: skip


def stage_notes(doc: Mapping[str, Any], plan: Mapping[str, Any], info: EngineInfo, *, where: str) -> tuple[str, ...]:
    """What a user should know of a job of a stage's plan."""
    notes = []
    first, used = doc["choices"][0], plan["best"]["layout_text"]
    if doc["stage"] == "rl":
        key = "trainer.total_training_steps" if info.id == "verl" else "max_steps"
        notes.append(f"{where} has no number of steps: {ASSUMED_STEPS} are assumed, change it with --set {key}=N")
        if str(Layout(**first["layout"])) != used or first.get("generator", {}).get("num_gpus") != first["num_gpus"]:
            notes.append(f"the fastest way of {where} is {first['name']!r}; {info.title} runs 'on policy' here")
    else:
        notes.append("servers run until the time limit: give it with --time")
    return tuple(notes)


def with_fix(error: EngineRefusedError, planned: Layout) -> EngineRefusedError:
    """The refusal with the option of `plan` that leads to the nearest layout."""
    nearest = error.refusal.nearest
    if nearest is None:
        return error
    changed = [f"{knob}={getattr(nearest, knob)}" for knob in FIXED if getattr(nearest, knob) != getattr(planned, knob)]
    reason = f"{error.refusal.sentence}: plan again with --fix {','.join(changed)}"
    return EngineRefusedError(replace(error.refusal, reason=reason, nearest=None)) if changed else error
