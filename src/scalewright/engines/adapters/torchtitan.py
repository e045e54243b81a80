"""torchtitan 0.2: its own trainer with its TOML file; a program of ours adds models and samples that it has not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.engines.adapters.pieces import missing, program_job, refuse_modes, value_of
from scalewright.engines.files import torchtitan as file
from scalewright.engines.hf_config import hf_config
from scalewright.engines.types import EngineJob, EngineRequest, Placeholder, refusal
from scalewright.errors import ConfigError

TOML_NAME = "engine/torchtitan.toml"
OWN_DATA = ("c4", "c4_test", "c4_validation")
"""Data sets that its release 0.2.2 has loaders for; others are token files, which our program reads."""
OWN_FLAVOR = "scalewright"
"""A flavor of llama3 that our program registers with the sizes of the run's model."""


def is_own(request: EngineRequest) -> bool:
    """Whether torchtitan runs as it is: one of its models, one of its data sets, on GPUs."""
    return request.device == "cuda" and file.flavour(request.shape) is not None and request.data in (*OWN_DATA, "")


def refuse_what_it_lacks(request: EngineRequest) -> None:
    if file.flavour(request.shape) is not None:
        file.refuse_what_it_lacks(request)
    else:
        file.refuse_layout(request, "llama3")
        model = hf_config(request)
        if model["model_type"] not in ("llama", "mistral") or model["tie_word_embeddings"]:
            why = f"of models that are not its own, only Llamas with a head of their own; this is {model['model_type']}"
            raise refusal(file.NAME, f"model {request.spec.id}", why, "choose --engine megatron or huggingface")
    refuse_modes(file.NAME, request)
    if not is_own(request) and int(request.layout.pp) > 1:
        why = "samples of a token file reach a pipeline's first stage only with torchtitan's own data"
        raise refusal(file.NAME, f"pp={request.layout.pp} with {request.data}", why, "use pp=1, or --data c4")


def sections_of(request: EngineRequest) -> dict[str, Any]:
    """The whole job: the layout's sections, and what of the run they leave out."""
    optimizer, own = request.optimizer, is_own(request)
    flavour = file.flavour(request.shape)
    on_cpu = request.device == "cpu"
    sections: dict[str, Any] = {
        "job": {"dump_folder": str(request.run_dir / "engine")},
        "metrics": {"log_freq": 1, "disable_color_printing": True},
        **file.sections_of(request, ("llama3", OWN_FLAVOR) if flavour is None or not own else flavour),
        "optimizer": {
            "lr": optimizer.learning_rate, "beta1": optimizer.beta1, "beta2": optimizer.beta2,
            "eps": optimizer.epsilon, "weight_decay": optimizer.weight_decay,
            "implementation": "for-loop" if on_cpu else "fused",
        },
        "lr_scheduler": {"warmup_steps": optimizer.num_warmup_steps, "decay_ratio": 0.0 if not own else 0.9,
                         "min_lr_factor": optimizer.min_learning_rate / optimizer.learning_rate if own else 0.0},
        "checkpoint": {
            "enable": request.checkpoint_every > 0, "folder": "checkpoints",
            "interval": max(request.checkpoint_every, 1), "last_save_model_only": False,
        },
        "debug": {"seed": request.seed},
    }  # fmt: skip
    sections["training"] |= {"steps": request.num_steps, "max_norm": optimizer.clip_norm}
    sections["compile"] = {"enable": not on_cpu}  # on a CPU kernels would be compiled for minutes
    if own:
        sections["training"] |= {"dataset": request.data or "c4"}
        sections["model"]["hf_assets_path"] = request.tokenizer or request.load
    if request.load and own:
        sections["checkpoint"] |= {"enable": True, "initial_load_path": request.load, "initial_load_in_hf": True}
    return sections


def with_own_settings(sections: dict[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """`--set section.key=value`: the last point divides, because sections have points themselves."""
    for key, text in settings.items():
        section, point, last = key.rpartition(".")
        if not point:
            raise ConfigError(f"--set {key}: torchtitan's keys are section.key, such as training.steps=100")
        sections.setdefault(section, {})[last] = value_of(text)
    return sections


def render(request: EngineRequest) -> EngineJob:
    text = file.toml_text(request, with_own_settings(sections_of(request), request.settings))
    config = ("--job.config_file", str(request.run_dir / TOML_NAME))
    data = Placeholder(name="data", what=f"one of {', '.join(OWN_DATA)}, or a file of token ids")
    if not is_own(request):
        return program_job(
            "torchtitan", "train_torchtitan", request, placeholders=missing(request, "data"), more_args=config,
            files={TOML_NAME: text},
        )  # fmt: skip
    return EngineJob(
        engine="torchtitan",
        files={TOML_NAME: text},
        command=(request.engine_python, "-m", "torchtitan.train", *config, *request.extra_args),
        variables={"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
        checkpoint_dir=request.checkpoint_dir,
        resume=f"the next attempt loads the newest checkpoint in {request.checkpoint_dir}",
        placeholders=(*(() if request.data else (data,)), *missing(request, "tokenizer")),
    )
