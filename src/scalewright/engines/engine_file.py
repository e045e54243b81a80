"""engine.json: the whole run as one file, which our program reads in the engine's own environment."""

from __future__ import annotations

from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from scalewright.engines.hf_config import hf_config
from scalewright.engines.types import EngineRequest
from scalewright.records.documents import document, to_json

KIND = "engine-file"
NAME = "engine/engine.json"
"""Relative to the run directory."""
PROGRAM_FOLDER = "engine/programs"
SHARED_PROGRAMS = ("engine_setup", "step_traces", "trainer_parts")


def engine_document(engine: str, request: EngineRequest, **more: Any) -> dict[str, Any]:
    """The file's content. `more` holds sections of one engine, such as `deepspeed`.

    Folders are full paths. `layout` has the keys of a layout; `steps` counts optimizer steps of the whole run, and a
    run that is started again resumes from the newest checkpoint in `checkpoint.folder` and ends at `steps`.
    """
    return document(
        KIND,
        {
            "engine": engine,
            "task": request.task,
            "model": hf_config(request),
            "layout": request.layout.as_dict(),
            "num_micro_batches": request.num_micro_batches,
            "num_ranks": request.num_gpus,
            "sequence": request.seq_len,
            "steps": request.num_steps,
            "precision": request.recipe.name,
            "device": request.device,
            "seed": request.seed,
            "data": request.data,
            "load": request.load,
            "tokenizer": request.tokenizer,
            "checkpoint": {"folder": str(request.checkpoint_dir), "every": request.checkpoint_every, "keep": 2},
            "log_folder": str(request.log_dir),
            "optimizer": asdict(request.optimizer),
            "lora_rank": request.mode.lora_rank if request.mode.is_lora else 0,
            "settings": dict(request.settings),
            **_trace(request),
            **more,
        },
    )


def _trace(request: EngineRequest) -> dict[str, Any]:
    """Which steps are traced; a run without such steps does not mention them."""
    if not request.profile_steps:
        return {}
    return {"trace": {"folder": str(request.trace_dir), "steps": request.profile_steps}}


def engine_text(engine: str, request: EngineRequest, **more: Any) -> str:
    return to_json(engine_document(engine, request, **more))


def program_files(name: str) -> dict[str, str]:
    """A program of `programs/` and the modules that programs share, by their paths in the run directory."""
    folder = Path(str(resources.files("scalewright.engines") / "programs"))
    paths = [folder / f"{name}.py", *(path for path in sorted(folder.glob("*.py")) if path.stem in SHARED_PROGRAMS)]
    return {f"{PROGRAM_FOLDER}/{path.name}": path.read_text(encoding="utf-8") for path in paths}
