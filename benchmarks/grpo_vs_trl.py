"""A GRPO step of ours beside one of TRL's GRPOTrainer: same weights, prompts, lengths and device, in one call.

    pip install --no-index --no-deps WHEELS/*.whl        # trl, accelerate, datasets and what they need
    python benchmarks/grpo_vs_trl.py --device cuda [--trl-batching continuous] >> benchmarks/results/h200_trl.jsonl

Neither uses vLLM. TRL generates with `generate` of transformers, or with its continuous batching where that is chosen.
Weights are random and of a Llama shape; a step answers 16 prompts of 128 tokens 8 times with 256 tokens each, rewards
the answers, updates the model once by the GRPO loss without a reference model, and (ours) brings the new weights to the
engine. TRL trains weights in bf16 without a copy in fp32; ours keeps one. Times are medians over steps after warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from scalewright.run.device import allow_attention, join_group
from scalewright.run.generate.hugging_face import open_hugging_face
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import Request, Sampling
from scalewright.run.reasoning.batches import TokenSequence, pack_sequences
from scalewright.run.reasoning.losses import group_advantages
from scalewright.run.reasoning.objectives import PolicyData, PolicyObjective
from scalewright.run.reasoning.trainer import open_trainer
from scalewright.run.world import World
from scalewright.workload.language_run import OptimizerSettings
from scalewright.workload.layout import parse_layout
from scalewright.workload.reasoning.policy_loss import policy_loss

WARM_UP, TIMED, RATE = 3, 5, 1e-6
WAYS = ["sdpa", "sdpa-plain", "eager-plain"]
"""TRL's attention; plain: without its own kernels for log-probabilities, whose first update gave weights that are no
numbers with TRL 1.16.0 and torch 2.11.0."""
SIZES: dict[str, dict[str, int]] = {
    "cuda": {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 2816, "vocab": 32768, "prompts": 16, "prompt": 128,
             "answer": 256, "group": 8, "rows": 128},
    "cpu": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 512, "prompts": 2, "prompt": 12, "answer": 6,
            "group": 2, "rows": 16},
}  # fmt: skip


def wait() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def write_model(folder: Path, sizes: dict[str, int], dtype: torch.dtype) -> None:
    """A Llama with random weights, and a tokenizer whose words are `w0`, `w1`, ..."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=sizes["hidden"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["heads"] // 2, intermediate_size=sizes["ffn"], vocab_size=sizes["vocab"],
        max_position_embeddings=2 * (sizes["prompt"] + sizes["answer"]), tie_word_embeddings=True, bos_token_id=0,
        eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    vocab = {f"w{number}": number for number in range(sizes["vocab"])}
    words = Tokenizer(WordLevel(vocab, unk_token="w3"))
    words.pre_tokenizer = WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="w0", eos_token="w1", pad_token="w2", unk_token="w3"
    ).save_pretrained(folder)


def prompt_tokens(sizes: dict[str, int]) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    size = (sizes["prompts"], sizes["prompt"])
    return [tuple(row) for row in torch.randint(4, sizes["vocab"], size, generator=generator).tolist()]


def reward(tokens: Any) -> float:
    """Something that costs nothing and differs between answers."""
    return len({int(token) % 17 for token in tokens}) / 17.0 + sum(int(token) % 2 for token in tokens) / len(tokens)


def ours(folder: Path, sizes: dict[str, int], device: torch.device) -> dict[str, Any]:
    model = open_hugging_face(folder)
    length, group = sizes["answer"], sizes["group"]
    shape = model.shape.model_copy(update={"seq": sizes["prompt"] + length})
    precision = "bf16" if device.type == "cuda" else "fp32"
    trainer = open_trainer(
        shape, parse_layout("dp=1"), device=device, precision=precision, constants=model.constants,  # type: ignore[arg-type]
        compile_mode="default" if device.type == "cuda" else "off",
        optimizer=OptimizerSettings(learning_rate=RATE, weight_decay=0.0),
    )  # fmt: skip
    trainer.load_weights(model.weights(), where=str(folder))
    options = EngineOptions(
        max_context=sizes["prompt"] + length, max_running=sizes["prompts"] * group, prefill_chunk=2**15,
        precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    engine = open_engine(shape, options, device=device, weights=model.weights(), constants=model.constants)
    prompts, settings = prompt_tokens(sizes), policy_loss("grpo")
    seconds: dict[str, list[float]] = {"generation": [], "training": [], "weight_sync": []}
    lengths = []
    for step in range(WARM_UP + TIMED):
        marks = [wait()]
        for number, prompt in enumerate(prompts):
            engine.add(
                Request(
                    id=f"{step}-{number}",
                    prompt=prompt,
                    max_new_tokens=length,
                    num_answers=group,
                    sampling=Sampling(seed=step),
                    stop_tokens=frozenset({1}),
                )
            )
        answers = sorted(engine.drain(), key=lambda a: (int(a.request_id.split("-")[1]), a.index))
        marks.append(wait())
        rewards = torch.tensor([reward(answer.tokens) for answer in answers]).view(-1, group)
        advantages = group_advantages(settings, rewards).flatten().tolist()
        items = [TokenSequence(prompts[i // group], answer.tokens) for i, answer in enumerate(answers)]
        batches = pack_sequences(
            items, row_tokens=sizes["prompt"] + length, num_rows=sizes["rows"], packing="padded", device=device,
            dtype=trainer.dtype,
        )  # fmt: skip
        data = [
            PolicyData(
                advantages_N=batch.per_sequence(advantages),
                engine_log_probs_NR=batch.per_token([a.log_probs for a in answers]),
            )
            for batch in batches
        ]
        result = trainer.update(batches, PolicyObjective(settings=settings, data=data, max_response=length))
        marks.append(wait())
        engine.replace_weights(trainer.named_weights())
        marks.append(wait())
        lengths.append(statistics.mean(len(a.tokens) for a in answers))
        if step >= WARM_UP:
            for part, start_s, end_s in zip(seconds, marks, marks[1:], strict=False):
                seconds[part].append(end_s - start_s)
    medians = {part: statistics.median(times) for part, times in seconds.items()}
    return {
        "step_s": sum(medians.values()), "seconds": medians, "answer_len": statistics.mean(lengths),
        "numbers": result.numbers,
    }  # fmt: skip


def theirs(folder: Path, sizes: dict[str, int], device: torch.device, batching: str, way: str) -> dict[str, Any]:
    import trl
    from datasets import Dataset

    kind, _, kernels = way.partition("-")
    if kernels == "plain":
        from trl.kernels import chunked_logprob

        chunked_logprob._TRITON_AVAILABLE = chunked_logprob._MM_OUT_DTYPE = False

    marks: list[float] = []
    kept: dict[str, torch.Tensor] = {}
    put_back: list[int] = []

    class Clock(transformers.TrainerCallback):
        """Times steps. Weights that are no longer finite are put back between two steps, outside of their time: an
        update by TRL gave such weights on one GPU, and the next step's sampling ended with an error."""

        def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
            kept.update({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            marks.append(wait())

        def on_step_end(self, _: Any, state: Any, *__: Any, model: Any, **___: Any) -> None:
            marks.append(wait())
            if not all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values()):
                model.load_state_dict(kept)
                put_back.append(state.global_step)

    lengths: list[float] = []

    def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.append(statistics.mean(len(ids) for ids in completion_ids))
        return [reward(ids) for ids in completion_ids]

    texts = [" ".join(f"w{token}" for token in prompt) for prompt in prompt_tokens(sizes)]
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    config = trl.GRPOConfig(
        output_dir=str(folder / "out"), per_device_train_batch_size=sizes["prompts"] * sizes["group"],
        gradient_accumulation_steps=1, num_generations=sizes["group"], max_completion_length=sizes["answer"],
        max_steps=WARM_UP + TIMED, learning_rate=RATE, beta=0.0, loss_type="grpo", temperature=1.0, top_p=1.0, top_k=0,
        bf16=device.type == "cuda", use_cpu=device.type == "cpu", gradient_checkpointing=False, report_to="none",
        save_strategy="no", logging_steps=1, disable_tqdm=True, seed=0, shuffle_dataset=False,
        model_init_kwargs={"dtype": dtype, "attn_implementation": kind},
        use_transformers_continuous_batching=batching == "continuous",
        optim="adamw_torch_fused" if device.type == "cuda" else "adamw_torch",
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=str(folder), reward_funcs=rewards, args=config, callbacks=[Clock()],
        train_dataset=Dataset.from_dict({"prompt": texts * (WARM_UP + TIMED)}),
    )  # fmt: skip
    trainer.train()
    steps_s = [end - start for start, end in zip(marks[::2], marks[1::2], strict=True)][WARM_UP:]
    return {
        "step_s": statistics.median(steps_s), "spread_s": [min(steps_s), max(steps_s)], "trl": trl.__version__,
        "transformers": transformers.__version__, "answer_len": statistics.mean(lengths), "batching": batching,
        "way": way, "put_back_after_steps": put_back,
    }  # fmt: skip


def measured(part: str, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """One of the two in this process."""
    device = torch.device("cuda", 0) if chosen.device == "cuda" else torch.device("cpu")
    if part == "trl":
        return theirs(folder, SIZES[chosen.device], device, chosen.trl_batching, chosen.trl_way)
    allow_attention("auto", device)
    join_group(World.from_environment({}, host="here"), device)
    mine = ours(folder, SIZES[chosen.device], device)
    dist.destroy_process_group()
    return mine


def theirs_if_any(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """TRL's step in the first way that runs."""
    for way in [chosen.trl_way, *(one for one in WAYS if one != chosen.trl_way)]:
        chosen.trl_way = way
        try:
            return in_own_process("trl", folder, chosen)
        except subprocess.CalledProcessError:
            print(f"TRL did not end its steps with {way}", file=sys.stderr)
    raise SystemExit("TRL did not run")


def in_own_process(part: str, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Neither finds what the other left behind: settings of PyTorch, memory, process groups."""
    words = [
        sys.executable, __file__, "--device", chosen.device, "--trl-batching", chosen.trl_batching, "--trl-way",
        chosen.trl_way,
    ]  # fmt: skip
    shown = subprocess.run([*words, "--part", part, "--folder", str(folder)], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(shown.stdout.decode().splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--trl-batching", choices=["generate", "continuous"], default="generate")
    parser.add_argument("--trl-way", choices=WAYS, default=WAYS[0], help="tried first")
    parser.add_argument("--part", choices=["ours", "trl"], default=None, help="only this one, of --folder's model")
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    if chosen.part:
        print(json.dumps(measured(chosen.part, chosen.folder, chosen)), flush=True)
        return
    with tempfile.TemporaryDirectory() as name:
        sizes, dtype = SIZES[chosen.device], torch.bfloat16 if chosen.device == "cuda" else torch.float32
        write_model(Path(name), sizes, dtype)
        mine = in_own_process("ours", Path(name), chosen)
        print(json.dumps({"ours": mine}), flush=True)
        other = theirs_if_any(Path(name), chosen)
    where = torch.cuda.get_device_name() if chosen.device == "cuda" else "cpu"
    row = {"ours": mine, "trl": other, "ratio": other["step_s"] / mine["step_s"], "sizes": sizes, "device": where}
    print(json.dumps(row | {"torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
