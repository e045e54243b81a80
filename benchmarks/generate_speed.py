"""Speed of our inference engine, one JSON line for each measurement.

    python benchmarks/generate_speed.py --device cuda [--core] [--check] >> benchmarks/results/h200_generate.jsonl
    python benchmarks/generate_speed.py --device cpu >> benchmarks/results/cpu_generate.jsonl

On a GPU: decode steps of GPT-3 1.3B (24 layers of 2048) by batch, context and precision. Counted are the bytes that a
step must read: every weight once, and the keys and values of every sequence once; beside them a copy of 8 GB, which
counts bytes read and written. Times are those of the whole engine, scheduling and sampling included.
On a CPU: 32 prompts of mixed length beside `generate` of transformers, with the same weights and the same tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from scalewright.catalog.library import open_catalog
from scalewright.catalog.types import TransformerShape
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.hugging_face import open_hugging_face
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import GREEDY, Request, Sampling

WARM_UP_STEPS, TIMED_STEPS, REPEATS = 6, 24, 3
PREFILL_CHUNK = 2**18
"""All prompts in one step, so that every decode step has the whole batch."""
LONGEST = 4096 + 256
CACHE_TOKENS = 64 * (2048 + 192)
CORE = [("bf16", 64, 2048), ("bf16", 8, 2048), ("bf16", 1, 2048)]
MORE = [
    *[("bf16", batch, context) for batch in (1, 8, 32, 64) for context in (512, 1024)],
    *[("bf16", 32, 2048), ("bf16", 1, 4096), ("bf16", 8, 4096), ("bf16", 32, 4096)],
    *[("fp8", batch, context) for batch in (1, 8, 32, 64) for context in (512, 2048)],
    *[("fp32", batch, 2048) for batch in (1, 8)],
]


DEADLINE_S = [float("inf")]


def emit(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def gpt_1b() -> TransformerShape:
    shape = open_catalog().model("gpt3-1.3b").transformer
    assert shape is not None
    return shape.model_copy(update={"num_positions": LONGEST})


def copy_bytes_per_s() -> float:
    """The rate of a large copy, bytes read and written: the roof that decode steps are held against."""
    source = torch.randint(0, 255, (2**32,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times_s = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times_s.append(start.elapsed_time(end) / 1e3)
    return 2 * source.nbytes / statistics.median(times_s)


def engine_for(precision: str, shape: TransformerShape, *, execution: str = "graphs", **others: Any) -> Engine:
    width = 4 if precision == "fp32" else 2
    token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * width
    options: dict[str, Any] = {
        "max_context": LONGEST, "max_running": 64, "prefill_chunk": PREFILL_CHUNK, "precision": precision,
        "cache_bytes": token_bytes * CACHE_TOKENS // (2 if precision == "fp32" else 1), "execution": execution,
    }  # fmt: skip
    return open_engine(shape, EngineOptions(**(options | others)), device=torch.device("cuda"), weights=0)


def prompts(count: int, length: int, vocab: int, seed: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(vocab, (length,), generator=generator).tolist()) for _ in range(count)]


def measure(
    engine: Engine, precision: str, batch: int, context: int, roof: float, sampling: Sampling = GREEDY
) -> dict[str, Any]:
    """Time decode steps of a full batch whose mean context is the given one."""
    started_s = time.perf_counter()
    num_prefill_steps = -(-batch * context // PREFILL_CHUNK)
    num_steps = WARM_UP_STEPS + REPEATS * TIMED_STEPS
    length = max(context - num_steps // 2 - num_prefill_steps, 1)
    for number, prompt in enumerate(prompts(batch, length, engine.vocab, seed=batch)):
        engine.add(
            Request(id=str(number), prompt=prompt, max_new_tokens=num_steps + num_prefill_steps + 8, sampling=sampling)
        )
    while True:
        events = engine.step()
        if events.num_decoded == batch and events.num_prefill_tokens == 0:
            break
    torch.cuda.synchronize()
    ready_s = time.perf_counter() - started_s
    for _ in range(WARM_UP_STEPS):
        engine.step()
    rows = []
    for _ in range(REPEATS):
        before = (engine.stats.decode_bytes, engine.stats.num_context_tokens)
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        num_rows = [engine.step().num_decoded for _ in range(TIMED_STEPS)]
        torch.cuda.synchronize()
        elapsed_s = time.perf_counter() - begun_s
        assert set(num_rows) == {batch}
        rows.append((elapsed_s / TIMED_STEPS, (engine.stats.decode_bytes - before[0]) / elapsed_s,
                     (engine.stats.num_context_tokens - before[1]) / TIMED_STEPS / batch))  # fmt: skip
    step_s, rate, mean_context = (statistics.median(column) for column in zip(*rows, strict=True))
    row: dict[str, Any] = {
        "kind": "decode", "model": "gpt3-1.3b", "precision": precision, "batch": batch, "context": context,
        "mean_context": mean_context, "step_s": step_s, "tokens_per_s": batch / step_s, "bytes_per_s": rate,
        "of_copy_frac": rate / roof, "weight_bytes": engine.stats.weight_bytes,
        "cache_bytes_per_token": engine.stats.cache_bytes_per_token, "device_step_s": device_step_s(engine, batch),
        "temperature": sampling.temperature, "until_ready_s": ready_s,
        "spread_frac": (max(r[0] for r in rows) - min(r[0] for r in rows)) / step_s,
    }  # fmt: skip
    emit(**row)
    engine.drain()
    return row


def device_step_s(engine: Engine, batch: int) -> float:
    """The same step replayed without a host between: what the device alone takes."""
    step = next(s for (size, _), s in engine._runner._steps.items() if size == batch)
    times_s = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(4):
            step.run()
        end.record()
        end.synchronize()
        times_s.append(start.elapsed_time(end) / 4e3)
    return statistics.median(times_s)


def guarded(work: Callable[[], object], what: str) -> None:
    """Run a part; if it fails, say why and go on with the next one."""
    if time.perf_counter() > DEADLINE_S[0]:
        emit(kind="skipped", what=what, reason="no time left")
        return
    started_s = time.perf_counter()
    try:
        work()
    except Exception:
        emit(kind="failed", what=what, traceback=traceback.format_exc()[-3000:])
    emit(kind="part", what=what, seconds=time.perf_counter() - started_s)


def on_gpu(rows: list[tuple[str, int, int]]) -> None:
    roof = copy_bytes_per_s()
    emit(kind="device", name=torch.cuda.get_device_name(), torch=torch.__version__, copy_bytes_per_s=roof)
    torch.cuda.empty_cache()
    for precision in dict.fromkeys(row[0] for row in rows):
        started_s = time.perf_counter()
        engine = engine_for(precision, gpt_1b())
        emit(kind="opened", precision=precision, seconds=time.perf_counter() - started_s)
        for _, batch, context in (row for row in rows if row[0] == precision):
            guarded(partial(measure, engine, precision, batch, context, roof), f"{precision} {batch} x {context}")
        if precision == "bf16":
            guarded(partial(measure, engine, precision, 64, 2048, roof, Sampling(temperature=1.0)), "sampled")
            guarded(partial(profile, engine), "profile")
        for what, times_s in engine._runner.kernels.times_s.items():
            emit(kind="choice", precision=precision, what=what, best=min(times_s, key=times_s.get), times_s=times_s)
        del engine
        gc.collect()
        torch.cuda.empty_cache()


def profile(engine: Engine) -> None:
    """Device time by kernel of the recorded steps of batch 1, 8 and 64, as they were left by the last measurement."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for (size, kind), step in engine._runner._steps.items():
        if kind == "greedy" and size in (1, 8, 64):
            with profiler(activities=[ProfilerActivity.CUDA]) as seen:
                for _ in range(3):
                    step.run()
                torch.cuda.synchronize()
            events = [e for e in seen.key_averages() if e.device_time_total > 0]
            events.sort(key=lambda e: -e.device_time_total)
            kernels = [(e.key[:60], e.count // 3, round(e.device_time_total / e.count, 2)) for e in events[:14]]
            emit(kind="profile", batch=size, kernels_calls_us=kernels)


def check() -> None:
    """Our kernels, with and without graphs, generate what PyTorch's operators generate."""
    base = gpt_1b().model_copy(update={"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 4, "head_dim": 64,
                                       "ffn_hidden": 512, "vocab": 1031, "num_positions": 512})  # fmt: skip
    no_bias = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias", "norm_bias", "tied_embeddings"), False)
    llama = base.model_copy(update=no_bias | {"kv_heads": 2, "gated": True, "positions": "rotary", "norm": "rmsnorm"})
    qwen = llama.model_copy(update={"qk_norm": True, "head_dim": 128})
    shapes = {"gpt": base, "llama": llama, "qwen": qwen}
    for (name, shape), precision in product(shapes.items(), ("fp32", "bf16", "fp8")):
        plain = answers_of(shape, precision, "plain")
        for execution in ("kernels", "graphs"):
            answers = answers_of(shape, precision, execution)
            emit(kind="check", model=name, precision=precision, execution=execution, **compared(plain, answers))


def answers_of(shape: TransformerShape, precision: str, execution: str) -> dict[str, Any]:
    engine = engine_for(precision, shape, execution=execution, max_context=512, max_running=6, cache_bytes=0,
                        prefill_chunk=256)  # fmt: skip
    for number in range(9):
        prompt = prompts(1, 1 + 33 * number, shape.vocab, seed=number)[0]
        stop = frozenset(range(100)) if number % 3 == 0 else frozenset()
        engine.add(Request(id=str(number), prompt=prompt, max_new_tokens=8 + number, sampling=GREEDY, stop_tokens=stop))
    return {completion.request_id: completion for completion in engine.drain()}


def compared(plain: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Share of equal answers, and the largest difference of log-probabilities up to the first different token."""
    worst, num_tokens = 0.0, 0
    for name, completion in plain.items():
        pairs = zip(completion.tokens, other[name].tokens, completion.log_probs, other[name].log_probs, strict=False)
        for ours, theirs, a, b in pairs:
            if ours != theirs:
                break
            worst, num_tokens = max(worst, abs(a - b)), num_tokens + 1
    equal = sum(plain[name].tokens == other[name].tokens for name in plain)
    return {
        "equal_answers": equal,
        "answers": len(plain),
        "worst_log_prob_difference": worst,
        "equal_tokens": num_tokens,
    }


PROMPT_LENGTHS = [8, 16, 24, 32, 48, 64, 96, 192] * 4
ANSWER_LENGTHS = [8, 12, 16, 24, 32, 48, 96, 256] * 4
CPU_SHAPE = {"n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 512, "vocab_size": 16384}


def on_cpu(folder: Path, num_repeats: int) -> None:
    """32 prompts of mixed length with answers of mixed length, beside transformers: all in one padded batch, which goes
    on until its longest answer ends, and one prompt after the other. Repeats are interleaved; each keeps its best."""
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = transformers.GPT2Config(**CPU_SHAPE, bos_token_id=0, eos_token_id=0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(folder)
    ours = open_hugging_face(folder)
    options = EngineOptions(max_context=512, precision="fp32", max_running=32, prefill_chunk=512)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1)).tolist()
    requests = [
        Request(id=str(n), prompt=prompts(1, PROMPT_LENGTHS[n], ours.shape.vocab, seed=n)[0],
                max_new_tokens=ANSWER_LENGTHS[order[n]], sampling=GREEDY)
        for n in range(32)
    ]  # fmt: skip
    num_tokens = sum(request.max_new_tokens for request in requests)
    engine = open_engine(
        ours.shape, options, device=torch.device("cpu"), weights=ours.weights(), constants=ours.constants
    )
    wall_s: dict[str, float] = {}
    cpu_s: dict[str, float] = {}
    answers: dict[str, dict[str, list[int]]] = {}
    ways = {"ours": partial(by_engine, engine), "transformers, one padded batch": partial(by_batch, theirs),
            "transformers, one by one": partial(by_prompt, theirs)}  # fmt: skip
    for _ in range(num_repeats):
        for name, generate in ways.items():
            begun = time.perf_counter(), time.process_time()
            answers[name] = generate(requests)
            wall_s[name] = min(wall_s.get(name, float("inf")), time.perf_counter() - begun[0])
            cpu_s[name] = min(cpu_s.get(name, float("inf")), time.process_time() - begun[1])
    emit(
        kind="cpu", model=f"GPT-2 of {CPU_SHAPE}, random weights", precision="fp32", threads=2, requests=32,
        answer_tokens=num_tokens, torch=torch.__version__, transformers=transformers.__version__, wall_s=wall_s,
        cpu_s=cpu_s, load_average=os.getloadavg()[0],
        tokens_per_s={name: num_tokens / seconds for name, seconds in wall_s.items()},
        times_faster={name: seconds / wall_s["ours"] for name, seconds in wall_s.items()},
        times_less_cpu={name: seconds / cpu_s["ours"] for name, seconds in cpu_s.items()},
        equal_answers={n: sum(answers["ours"][r.id] == a[r.id] for r in requests) for n, a in answers.items()},
    )  # fmt: skip


def by_engine(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    for request in requests:
        engine.add(request)
    return {completion.request_id: list(completion.tokens) for completion in engine.drain()}


def by_batch(model: Any, requests: list[Request]) -> dict[str, list[int]]:
    width = max(len(request.prompt) for request in requests)
    tokens, mask = (
        torch.zeros(len(requests), width, dtype=torch.int64),
        torch.zeros(len(requests), width, dtype=torch.int64),
    )
    for row, request in enumerate(requests):
        tokens[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
        mask[row, width - len(request.prompt) :] = 1
    most = max(request.max_new_tokens for request in requests)
    out = generated(model, tokens, mask, most)[:, width:].tolist()
    return {request.id: row[: request.max_new_tokens] for request, row in zip(requests, out, strict=True)}


def by_prompt(model: Any, requests: list[Request]) -> dict[str, list[int]]:
    answers = {}
    for request in requests:
        prompt = torch.tensor([request.prompt])
        out = generated(model, prompt, torch.ones_like(prompt), request.max_new_tokens)
        answers[request.id] = out[0, len(request.prompt) :].tolist()
    return answers


def generated(model: Any, tokens: Any, mask: Any, num_tokens: int) -> Any:
    with torch.inference_mode():
        return model.generate(tokens, attention_mask=mask, max_new_tokens=num_tokens, min_new_tokens=num_tokens,
                              do_sample=False, pad_token_id=0, eos_token_id=None)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--core", action="store_true", help="only batch 64, 8 and 1 at context 2048 in bf16")
    parser.add_argument("--check", action="store_true", help="compare kernels with PyTorch's operators first")
    parser.add_argument("--repeats", type=int, default=3, help="on a CPU")
    parser.add_argument("--seconds", type=float, default=3600.0, help="start nothing new after these")
    arguments = parser.parse_args()
    DEADLINE_S[0] = time.perf_counter() + arguments.seconds
    if arguments.device == "cuda":
        if arguments.check:
            guarded(check, "check")
        on_gpu(CORE if arguments.core else CORE + MORE)
    else:
        with tempfile.TemporaryDirectory() as folder:
            on_cpu(Path(folder), arguments.repeats)


if __name__ == "__main__":
    main()
