"""Decode steps and prompts of our engine on one device: what a calibration knows of generation.

Rows: phase (decode, prefill), precision, batch, context (decode: mean over the timed steps), num_tokens (prefill: of a
prompt), layers, hidden, times of a step or of a prompt, read_bytes (decode: weights and cache), bytes_per_s or
tokens_per_s. Every sequence of a batch has a prompt of its own, so that no part of the cache is read twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import torch

from scalewright.catalog.types import TransformerShape
from scalewright.records.types import ExitCode
from scalewright.run.device import allow_attention
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import GREEDY, Request
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.session import BenchSession, run_micro
from scalewright.run.micro.timing import timing_of
from scalewright.run.rank_context import RankContext
from scalewright.workload.generate_run import WeightPrecision
from scalewright.workload.language_run import restored_shape
from scalewright.workload.micro_run import DecodeRun

NUM_WARM, NUM_TIMED = 6, 24
"""Steps before those that count, which find their kernels and graphs, and steps that count."""
PREFILL_CHUNK = {"cpu": 256, "cuda": 2**17}
"""Prompt tokens of a step. On a GPU most batches are read in one, so that no smaller ones are decoded on the way: each
size would need kernels of its own."""
NUM_PROMPTS = 3
"""Prompts of each length that are timed, after one that is not."""
PAGE_SLACK = 128
"""Tokens of pages that a sequence leaves partly empty."""
SAFETY = 2.0
"""A case must fit with this many times the last one's time: of those that got kernels, or of those that had them."""
CACHE_FREE_FRAC = 0.5
"""Share of the free memory that the cache may take."""
LEAST_FRAC = 0.05
"""Share of the budget that must be left for an engine to be opened."""
Case = tuple[int, int]
"""Sequences of a step and the tokens they attend to; no sequences: a prompt of so many tokens."""
_numbers = count()


def run(rank: RankContext) -> ExitCode:
    return run_micro("decode", DecodeRun, _measure, rank)


def _measure(config: DecodeRun, session: BenchSession) -> None:
    """Every precision in its share of the time; then what was left out, as long as there is time."""
    shape = restored_shape(config.shape, where=config.model_id)
    session.prepare_cpu(config.precisions)
    allow_attention("auto", session.device)
    late: dict[WeightPrecision, list[Case]] = {}
    for number, precision in enumerate(config.precisions):
        until_s = session.budget.total_s * (1.0 - (number + 1) / len(config.precisions))
        every = _cases(config, session, shape, precision)
        late[precision] = _measure_precision(config, session, shape, precision, every, until_s=until_s)
    for precision, cases in late.items():
        left = _measure_precision(config, session, shape, precision, cases, until_s=0.0)
        for batch, context in left:
            what = f"batch {batch} at {context} tokens" if batch else f"prompts of {context} tokens"
            session.leave_out(f"{what} in {precision}", "the budget ended")
    session.summary |= {"model": config.model_id, "shape": config.shape}


def _cases(config: DecodeRun, session: BenchSession, shape: TransformerShape, precision: WeightPrecision) -> list[Case]:
    """Prompts, then small batches first, each at all its contexts: a size of batch has kernels of its own, which take
    longest to get."""
    room = int(free_bytes(session.device) * CACHE_FREE_FRAC) // _bytes_per_token(shape, precision)
    chunk = PREFILL_CHUNK[session.device.type]
    every = [(b, c) for b in sorted(config.batches) for c in sorted(config.contexts)]
    cases = [(b, c) for b, c in every if b * (c + _num_new(b, c, chunk)) <= room]
    for batch, context in (case for case in every if case not in cases):
        session.leave_out(f"batch {batch} at {context} tokens", "memory has no room for its cache")
    return [*((0, length) for length in sorted(config.prompts)), *cases] if cases else []


def _bytes_per_token(shape: TransformerShape, precision: WeightPrecision) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * (4 if precision == "fp32" else 2)


def _measure_precision(
    config: DecodeRun, session: BenchSession, shape: TransformerShape, precision: WeightPrecision, cases: list[Case], *,
    until_s: float,
) -> list[Case]:  # fmt: skip
    """Measure what fits into the time; the cases that did not."""
    if not cases or not session.has_time_for(session.budget.total_s * LEAST_FRAC, until_s=until_s):
        return cases
    chunk = PREFILL_CHUNK[session.device.type]
    needs = [(max(b, 1), c + (_num_new(b, c, chunk) if b else 2)) for b, c in cases]
    longest = max(num for _, num in needs)
    tokens = max(longest + PAGE_SLACK, *(b * (num + PAGE_SLACK) for b, num in needs))
    session.part(f"{precision}: opening the engine")
    engine = open_engine(
        shape,
        EngineOptions(
            max_context=longest, cache_bytes=tokens * _bytes_per_token(shape, precision),
            max_running=max(b for b, _ in needs), prefill_chunk=chunk, precision=precision, execution=config.execution,
        ),
        device=session.device,
    )  # fmt: skip
    common = {"precision": precision, "layers": shape.layers, "hidden": shape.hidden}
    late: list[Case] = []
    opening_s, known_s, ready = 0.0, 0.0, 0
    for batch, context in cases:
        is_ready = batch == ready
        if not session.has_time_for(SAFETY * (known_s if is_ready else opening_s), until_s=until_s):
            late.append((batch, context))
            continue
        begun_s = time.monotonic()
        row = _decode_row(engine, session, batch, context) if batch else _prompt_row(engine, session, context)
        session.rows.append(common | row)
        took_s, ready = time.monotonic() - begun_s, batch
        known_s, opening_s = (took_s, opening_s) if is_ready else (known_s, took_s)
    return late


def _num_new(batch: int, context: int, chunk: int) -> int:
    """Tokens of an answer: those that are timed, and those written while the other prompts are still read."""
    return NUM_WARM + NUM_TIMED + 4 + -(-batch * context // chunk)


def _request(num_prompt: int, num_new: int, vocab: int) -> Request:
    number = next(_numbers)
    generator = torch.Generator().manual_seed(number)
    prompt = torch.randint(0, vocab, (num_prompt,), generator=generator).tolist()
    return Request(id=f"r{number}", prompt=tuple(prompt), max_new_tokens=num_new, sampling=GREEDY)


def _decode_row(engine: Engine, session: BenchSession, batch: int, context: int) -> dict[str, float | int | str]:
    """The median step of a batch whose sequences attend to `context` tokens, halfway through the timed steps."""
    session.part(f"decode: batch {batch}, {context} tokens")
    num_prompt = max(context - NUM_WARM - NUM_TIMED // 2, 1)
    for _ in range(batch):
        engine.add(_request(num_prompt, _num_new(batch, context, engine.options.prefill_chunk), engine.vocab))
    times_s, contexts = [], []
    for took_s, num_decoded, num_context in _steps(engine, session):
        if num_decoded == batch:
            times_s.append(took_s)
            contexts.append(num_context / batch)
        if len(times_s) == NUM_WARM + NUM_TIMED:
            break
    engine.drain()
    timing = timing_of(times_s[NUM_WARM:])
    stats = engine.stats
    mean = sum(contexts[NUM_WARM:]) / len(contexts[NUM_WARM:])
    read = stats.weight_bytes + batch * mean * stats.cache_bytes_per_token
    return {
        "phase": "decode", "batch": batch, "context": round(mean, 1), **timing.row(), "read_bytes": read,
        "bytes_per_s": read / timing.time_s, "tokens_per_s": batch / timing.time_s,
    }  # fmt: skip


def _steps(engine: Engine, session: BenchSession) -> Iterator[tuple[float, int, int]]:
    """Steps that only decode, with their times."""
    while engine.has_work:
        begun_s = time.perf_counter()
        events = engine.step()
        took_s = time.perf_counter() - begun_s
        session.beat(took_s)
        if not events.num_prefill_tokens:
            yield took_s, events.num_decoded, events.num_context_tokens


def _prompt_row(engine: Engine, session: BenchSession, length: int) -> dict[str, float | int | str]:
    """From a prompt to its first token, nothing else running."""
    session.part(f"prompt of {length} tokens")
    times_s = []
    for _ in range(1 + NUM_PROMPTS):
        engine.add(_request(length, 1, engine.vocab))
        begun_s = time.perf_counter()
        engine.drain()
        times_s.append(time.perf_counter() - begun_s)
        session.beat(times_s[-1])
    timing = timing_of(times_s[1:])
    return {
        "phase": "prefill", "batch": 1, "num_tokens": length, **timing.row(), "tokens_per_s": length / timing.time_s,
        "chunk": engine.options.prefill_chunk,
    }  # fmt: skip
