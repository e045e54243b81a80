"""Speed of training on answered prompts, one JSON line for each figure.

    python benchmarks/reason_speed.py --device cuda --only train-350m >> benchmarks/results/h200_reason.jsonl
    python benchmarks/reason_speed.py --device cpu

train-350m, train-1b: updates by SFT and by a policy loss, padded and packed, with the share of the device's peak (MFU),
and passes that only score. Counted is the work of the model: 6 FLOP per token and parameter of the layers, causal
attention, and the output product at response tokens. Nothing that is computed twice counts twice.
sync: new weights into an engine, beside the time of a GRPO step. grpo: whole GRPO steps with the engine, by part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scalewright.catalog.library import open_catalog
from scalewright.catalog.types import TransformerShape
from scalewright.run.device import allow_attention, join_group
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import Request, Sampling
from scalewright.run.reasoning.batches import Packing, SequenceBatch, TokenSequence, pack_sequences
from scalewright.run.reasoning.losses import group_advantages
from scalewright.run.reasoning.objectives import Objective, PolicyData, PolicyObjective, ResponseLoss
from scalewright.run.reasoning.trainer import SequenceTrainer, open_trainer
from scalewright.run.world import World
from scalewright.workload.layout import parse_layout
from scalewright.workload.reasoning.policy_loss import policy_loss

MODELS = {"350m": "gpt3-350m", "1b": "gpt3-1.3b", "125m": "gpt3-125m"}
WARM_UP, TIMED = 3, 6
PEAK_FLOP_PER_S = {"NVIDIA H200": 989.5e12}
"""Dense bf16, from the data sheet of the H200."""


def emit(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(work: Callable[[], Any], *, warm_up: int = WARM_UP, repeats: int = TIMED) -> list[float]:
    times_s = []
    for number in range(warm_up + repeats):
        wait()
        started_s = time.perf_counter()
        work()
        wait()
        if number >= warm_up:
            times_s.append(time.perf_counter() - started_s)
    return times_s


def shape_of(name: str, *, seq: int, small: bool) -> TransformerShape:
    shape = open_catalog().model(MODELS[name]).transformer
    assert shape is not None
    changes: dict[str, Any] = {"seq": seq, "num_positions": seq, "vocab": -(-shape.vocab // 64) * 64}
    if small:
        changes |= {
            "layers": 2,
            "hidden": 64,
            "heads": 4,
            "kv_heads": 4,
            "head_dim": 16,
            "ffn_hidden": 256,
            "vocab": 512,
        }
    return shape.model_copy(update=changes)


def num_layer_params(shape: TransformerShape) -> int:
    width = shape.heads * shape.head_dim
    attention = shape.hidden * (width + 2 * shape.kv_heads * shape.head_dim) + width * shape.hidden
    return shape.layers * (attention + (3 if shape.gated else 2) * shape.hidden * shape.ffn_hidden)


def model_flop(shape: TransformerShape, items: Sequence[TokenSequence], *, passes: int) -> float:
    """Forward work times `passes`: 1 to score, 3 to train."""
    lengths = [len(item.prompt) + len(item.response) - 1 for item in items]
    products = 2.0 * num_layer_params(shape) * sum(lengths)
    attention = 2.0 * shape.layers * shape.heads * shape.head_dim * sum(length**2 for length in lengths)
    output = 2.0 * shape.vocab * shape.hidden * sum(len(item.response) for item in items)
    return passes * (products + attention + output)


def drawn(shape: TransformerShape, *, count: int, prompt: int, longest: int, uneven: bool) -> list[TokenSequence]:
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> list[int]:
        return torch.randint(shape.vocab, (length,), generator=generator).tolist()

    lengths = torch.randint(longest // 4, longest + 1, (count,), generator=generator).tolist()
    return [TokenSequence(tokens(prompt), tokens(lengths[i] if uneven else longest)) for i in range(count)]


def objective_of(kind: str, trainer: SequenceTrainer, batches: Sequence[SequenceBatch], longest: int) -> Objective:
    if kind == "sft":
        return ResponseLoss()
    data = []
    for batch, old in zip(batches, trainer.log_probs_of(batches), strict=True):
        advantages = torch.randn(len(batch.indices), device=old.device)
        data.append(PolicyData(advantages_N=advantages, engine_log_probs_NR=old + 0.05, old_log_probs_NR=old))
    return PolicyObjective(settings=policy_loss("grpo"), data=data, max_response=longest)


def train(name: str, device: torch.device, *, small: bool, compile_mode: str, rows: int) -> None:
    """Updates of 64k tokens in micro-batches of `rows` x 2048, prompts 256, answers up to 1792."""
    seq = 128 if small else 2048
    shape = shape_of(name, seq=seq, small=small)
    precision = "bf16" if device.type == "cuda" else "fp32"
    trainer = open_trainer(
        shape, parse_layout("dp=1"), device=device, precision=precision, compile_mode=compile_mode,  # type: ignore[arg-type]
    )  # fmt: skip
    peak = PEAK_FLOP_PER_S.get(torch.cuda.get_device_name()) if device.type == "cuda" else None
    prompt, longest = seq // 8, seq - seq // 8
    row_tokens, num_rows, count = (seq, 2, 8) if small else (seq, rows, 32)
    for uneven, packing in ((False, "padded"), (True, "packed"), (True, "padded")):
        items = drawn(shape, count=count, prompt=prompt, longest=longest, uneven=uneven)
        one_row = packing == "packed" and device.type == "cuda"
        batches = pack_sequences(
            items, row_tokens=row_tokens * num_rows if one_row else row_tokens, num_rows=1 if one_row else num_rows,
            packing=packing, device=device, dtype=trainer.dtype,  # type: ignore[arg-type]
        )  # fmt: skip
        for kind in ("sft", "grpo") if not uneven else ("grpo",):
            started_s = time.perf_counter()
            objective = objective_of(kind, trainer, batches, longest)
            times_s = timed(lambda o=objective, b=batches: trainer.update(b, o))
            flop = model_flop(shape, items, passes=3)
            step_s = statistics.median(times_s)
            emit(
                figure="training", model=MODELS[name], num_params=num_layer_params(shape), loss=kind, packing=packing,
                uneven=uneven, precision=precision, compile=compile_mode, num_sequences=len(items),
                num_tokens=sum(b.num_tokens for b in batches), num_read=sum(b.tokens_BL.numel() for b in batches),
                num_micro_batches=len(batches), step_s=step_s, spread_s=[min(times_s), max(times_s)],
                flop_per_s=flop / step_s, mfu_frac=flop / step_s / peak if peak else None,
                took_s=time.perf_counter() - started_s, peak_bytes=peak_bytes(device), **versions(device),
            )  # fmt: skip
        times_s = timed(lambda b=batches: trainer.log_probs_of(b))
        score_s, flop = statistics.median(times_s), model_flop(shape, items, passes=1)
        emit(
            figure="log_probs", model=MODELS[name], packing=packing, uneven=uneven, score_s=score_s,
            flop_per_s=flop / score_s, mfu_frac=flop / score_s / peak if peak else None,
        )  # fmt: skip
    if not small or device.type == "cpu":
        agreement(trainer, shape, prompt, longest, row_tokens, device)


def agreement(
    trainer: SequenceTrainer, shape: TransformerShape, prompt: int, longest: int, row_tokens: int, device: torch.device
) -> None:
    """Log-probabilities of the same sequences packed and padded: other kernels, the same numbers up to rounding."""
    items = drawn(shape, count=6, prompt=prompt, longest=longest, uneven=True)
    packings: tuple[Packing, ...] = ("packed", "padded")
    values = []
    for packing in packings:
        rows = 4 * row_tokens
        batches = pack_sequences(items, row_tokens=rows, packing=packing, device=device, dtype=trainer.dtype)
        by_index: dict[int, torch.Tensor] = {}
        for batch, log_probs in zip(batches, trainer.log_probs_of(batches), strict=True):
            by_index |= {
                index: row[: len(items[index].response)]
                for index, row in zip(batch.indices, log_probs, strict=True)
            }  # fmt: skip
        values.append(torch.cat([by_index[index] for index in range(len(items))]))
    gap = (values[0] - values[1]).abs()
    emit(figure="packed_and_padded", largest_gap=float(gap.max()), mean_gap=float(gap.mean()))


def engine_of(shape: TransformerShape, device: torch.device, *, max_context: int, max_running: int) -> Engine:
    options = EngineOptions(
        max_context=max_context, max_running=max_running, prefill_chunk=2**15,
        precision="bf16" if device.type == "cuda" else "fp32",
    )  # fmt: skip
    return open_engine(shape, options, device=device, weights=0)


def grpo(name: str, device: torch.device, *, small: bool, compile_mode: str) -> None:
    """Whole steps: 32 prompts of 127 tokens, 8 answers of 256 to each, one update. Rewards are random."""
    num_prompts, group, prompt_len, length = (4, 4, 15, 16) if small else (32, 8, 127, 256)
    seq = prompt_len + length + 1
    shape = shape_of(name, seq=seq, small=small)
    trainer = open_trainer(
        shape, parse_layout("dp=1"), device=device, precision="bf16" if device.type == "cuda" else "fp32",
        compile_mode=compile_mode,  # type: ignore[arg-type]
    )  # fmt: skip
    engine = engine_of(shape, device, max_context=seq, max_running=num_prompts * group)
    prompts = [tuple(s.prompt) for s in drawn(shape, count=num_prompts, prompt=prompt_len, longest=8, uneven=False)]
    parts: dict[str, list[float]] = {"generation": [], "log_probs": [], "training": [], "weight_sync": []}
    for step in range(WARM_UP + TIMED):
        marks = [moment()]
        for number, prompt in enumerate(prompts):
            sampling = Sampling(seed=step)
            request_id = f"{step}-{number}"
            engine.add(
                Request(id=request_id, prompt=prompt, max_new_tokens=length, num_answers=group, sampling=sampling)
            )
        answers = sorted(engine.drain(), key=lambda a: (int(a.request_id.split("-")[1]), a.index))
        marks.append(moment())
        rewards = torch.rand(num_prompts, group, generator=torch.Generator().manual_seed(step))
        advantages = group_advantages(policy_loss("grpo"), rewards).flatten().tolist()
        items = [TokenSequence(prompts[i // group], answer.tokens) for i, answer in enumerate(answers)]
        batches = pack_sequences(
            items, row_tokens=seq, num_rows=64, packing="padded", device=device, dtype=trainer.dtype
        )
        old = trainer.log_probs_of(batches)
        marks.append(moment())
        data = [
            PolicyData(
                advantages_N=batch.per_sequence(advantages), old_log_probs_NR=old_NR,
                engine_log_probs_NR=batch.per_token([a.log_probs for a in answers]),
            )
            for batch, old_NR in zip(batches, old, strict=True)
        ]  # fmt: skip
        result = trainer.update(batches, PolicyObjective(settings=policy_loss("grpo"), data=data, max_response=length))
        marks.append(moment())
        engine.replace_weights(trainer.named_weights())
        marks.append(moment())
        if step >= WARM_UP:
            for part, start_s, end_s in zip(parts, marks, marks[1:], strict=False):
                parts[part].append(end_s - start_s)
    medians = {part: statistics.median(times) for part, times in parts.items()}
    step_s = sum(medians.values())
    emit(
        figure="grpo_step", model=MODELS[name], num_prompts=num_prompts, group=group, prompt_len=prompt_len,
        response_len=length, step_s=step_s, seconds=medians, sync_frac=medians["weight_sync"] / step_s,
        numbers=result.numbers, compile=compile_mode, peak_bytes=peak_bytes(device), **versions(device),
    )  # fmt: skip


def moment() -> float:
    wait()
    return time.perf_counter()


def peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else None


def versions(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", choices=["train-350m", "train-1b", "grpo-350m", "grpo-1b"], default=None)
    parser.add_argument("--rows", type=int, default=8, help="rows of 2048 tokens in a micro-batch of train-*")
    parser.add_argument("--compile", choices=["off", "default"], default="default")
    chosen = parser.parse_args()
    device = torch.device(chosen.device, 0) if chosen.device == "cuda" else torch.device("cpu")
    small, compile_mode = chosen.device == "cpu", "off" if chosen.device == "cpu" else chosen.compile
    allow_attention("auto", device)
    join_group(World.from_environment({}, host="here"), device)
    for name in [chosen.only] if chosen.only else ["train-350m", "grpo-350m", "train-1b", "grpo-1b"]:
        kind, _, size = name.partition("-")
        if kind == "train":
            train(size, device, small=small, compile_mode=compile_mode, rows=chosen.rows)
        else:
            grpo(size, device, small=small, compile_mode=compile_mode)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
