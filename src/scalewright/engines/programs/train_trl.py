"""Train with TRL: supervised fine-tuning, or GRPO, on the samples of the run's file.

    python train_trl.py --config engine/engine.json

Without a tokenizer the tokens are words such as `t17`. GRPO then rewards answers by the share of even tokens in them,
which a model learns in a few steps; a data set of the user's brings its own reward in `settings.reward`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from engine_setup import TokenWindows, fail, hugging_face_model, leave, rank, read_config, say, small_tokenizer
from trainer_parts import StepTimes, end_group, last_checkpoint, training_arguments
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

PROMPT_TOKENS = 16
"""Of made-up prompts."""


def samples_as_text(config: dict[str, Any], *, num: int, length: int) -> list[str]:
    samples = TokenWindows(config)
    return [" ".join(f"t{token}" for token in samples.sample(index)[:length]) for index in range(num)]


def data_set(config: dict[str, Any], column: str) -> Dataset:
    """The user's JSON lines, or made-up text."""
    data = config["data"]
    if data and data != "synthetic":
        if not Path(data).is_file():
            fail(f"--data {data!r}: no such file; TRL reads JSON lines with a column {column!r}")
        loaded = load_dataset("json", data_files=data, split="train")
        if column not in loaded.column_names and "messages" not in loaded.column_names:
            fail(f"{data}: has columns {', '.join(loaded.column_names)}; TRL needs {column!r} or 'messages'")
        return loaded
    length = PROMPT_TOKENS if column == "prompt" else int(config["sequence"])
    num = int(config["steps"]) * int(config["layout"]["gbs"])
    return Dataset.from_dict({column: samples_as_text(config, num=num, length=length)})


def even_share(completions: list[Any], **_: Any) -> list[float]:
    """Reward of made-up answers: the share of even tokens."""
    words = [str(text).split() for text in completions]
    return [sum(word[1:].isdigit() and int(word[1:]) % 2 == 0 for word in one) / max(len(one), 1) for one in words]


def supervised(config: dict[str, Any], times: StepTimes) -> Any:
    arguments = SFTConfig(
        **training_arguments(config), max_length=int(config["sequence"]), packing=False, dataset_num_proc=None,
        dataset_text_field="text",
    )  # fmt: skip
    return SFTTrainer(
        model=hugging_face_model(config), args=arguments, train_dataset=data_set(config, "text"),
        processing_class=small_tokenizer(config), callbacks=[times],
    )  # fmt: skip


def reinforced(config: dict[str, Any], times: StepTimes) -> Any:
    """GRPO. A reference model is opened by its path, so the start weights lie in a folder."""
    settings = config.get("grpo") or {}
    folder = config["load"] or str(Path(config["checkpoint"]["folder"]).parent / "start")
    tokenizer = small_tokenizer(config)
    if not config["load"] and rank() == 0 and not (Path(folder) / "config.json").is_file():
        hugging_face_model(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    _wait_for(Path(folder) / "config.json")
    shared = training_arguments(config)
    arguments = GRPOConfig(
        **shared, max_completion_length=int(settings.get("max_completion", 16)),
        num_generations=int(settings.get("num_generations", 2)), beta=float(settings.get("beta", 0.0)),
        temperature=float(settings.get("temperature", 1.0)), **vllm_arguments(settings),
    )  # fmt: skip
    return GRPOTrainer(
        model=folder, args=arguments, train_dataset=data_set(config, "prompt"), processing_class=tokenizer,
        reward_funcs=even_share, callbacks=[times],
    )  # fmt: skip


def vllm_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """A split generator is vLLM's, on the devices of the trainer; else the trainer's own model answers."""
    degree = int(settings.get("vllm_tensor_parallel_size", 0))
    if not degree:
        return {}
    return {"use_vllm": True, "vllm_mode": "colocate", "vllm_tensor_parallel_size": degree}


def _wait_for(path: Path) -> None:
    """Other ranks wait until the first has written the start weights."""
    for _ in range(600):
        if path.is_file() and (path.parent / "tokenizer_config.json").is_file():
            return
        time.sleep(0.1)
    fail(f"{path}: was not written; give the start weights with --load")


def main() -> None:
    config = read_config()
    if config["task"] not in ("sft", "grpo"):
        fail(f"TRL does sft and grpo, not {config['task']}; choose one with --task")
    times = StepTimes(config)
    trainer = supervised(config, times) if config["task"] == "sft" else reinforced(config, times)
    trainer.train(resume_from_checkpoint=last_checkpoint(config))
    end_group()
    times.end(trainer.state)
    say(json.dumps({"finished": config["task"], "steps": trainer.state.global_step}))


if __name__ == "__main__":
    main()
    leave()
