"""What several adapters need: placeholders, settings of the user, and the job of a program of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scalewright.engines.engine_file import NAME, PROGRAM_FOLDER, engine_text, program_files
from scalewright.engines.types import EngineJob, EngineRequest, Placeholder, refusal

ON_ITS_OWN = {
    "data": Placeholder(name="data", what="token ids: a .npy file, or the prefix of Megatron's .bin and .idx"),
    "indexed": Placeholder(name="data", what="the prefix of tokenised .bin and .idx files"),
    "text": Placeholder(name="data", what="a data set: a folder, a .jsonl file, or a name on Hugging Face's hub"),
    "load": Placeholder(name="load", what="the folder of the weights to start from"),
    "tokenizer": Placeholder(name="tokenizer", what="the folder of the tokenizer"),
}


def missing(request: EngineRequest, *names: str) -> tuple[Placeholder, ...]:
    """Placeholders that the request leaves open. With synthetic data only the weights of a stage are needed."""
    open_ones = []
    for name in names:
        place = ON_ITS_OWN[name]
        if name != "load" and request.is_synthetic:
            continue
        if not getattr(request, place.name):
            open_ones.append(place)
    return tuple(open_ones)


def value_of(text: str) -> Any:
    """A value of `--set`: JSON where it is one, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def with_settings(sections: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """Nested sections with dotted keys set; they come last and win."""
    merged: dict[str, Any] = json.loads(json.dumps(sections))
    for key, text in settings.items():
        place = merged
        *folders, last = key.split(".")
        for folder in folders:
            inner = place.get(folder)
            place[folder] = inner if isinstance(inner, dict) else {}
            place = place[folder]
        place[last] = value_of(text)
    return merged


def refuse_splits(name: str, request: EngineRequest, *allowed: str) -> None:
    """Refuse the splits that a program of ours does not make."""
    layout = request.layout
    for knob in ("tp", "pp", "cp", "ep", "vpp"):
        if knob not in allowed and int(getattr(layout, knob)) > 1:
            why = "the program that starts it splits " + (f"along {', '.join(allowed)} and " if allowed else "")
            other = "" if request.task == "grpo" else ", or --engine megatron"
            raise refusal(name, f"{knob}={getattr(layout, knob)}", f"{why}the batch only", f"use {knob}=1{other}")
    if layout.sp and "sp" not in allowed:
        raise refusal(name, "sp=1", "the program that starts it does not split the sequence", "use sp=0")


def refuse_modes(name: str, request: EngineRequest, *allowed: str) -> None:
    if request.mode.name not in ("full", *allowed):
        why = "the program that starts it trains all weights, with the optimizer on the devices"
        raise refusal(name, f"mode {request.mode}", why, "use mode full")


def program_job(
    engine: str, program: str, request: EngineRequest, *, placeholders: tuple[Placeholder, ...],
    more_args: tuple[str, ...] = (), files: Mapping[str, str] | None = None, notes: tuple[str, ...] = (),
    saves_on_notice: bool = False, **sections: Any,
) -> EngineJob:  # fmt: skip
    """The job that starts a program of ours in the engine's environment. The run directory gets a copy of it, so that
    containers and other nodes see it, and a later release of scalewright does not change a run that goes on."""
    start = str(request.run_dir / PROGRAM_FOLDER / f"{program}.py")
    command = (request.engine_python, start, "--config", str(request.run_dir / NAME), *more_args)
    return EngineJob(
        engine=engine,
        files={NAME: engine_text(engine, request, **sections), **program_files(program), **(files or {})},
        command=(*command, *request.extra_args),
        checkpoint_dir=request.checkpoint_dir,
        saves_on_notice=saves_on_notice,
        resume=f"the next attempt loads the newest checkpoint in {request.checkpoint_dir}",
        placeholders=placeholders,
        notes=notes,
    )
