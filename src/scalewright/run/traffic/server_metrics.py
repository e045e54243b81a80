"""What a server says of itself under /metrics: how full its cache is, what runs, what was put aside."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

CACHE_NAMES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage",
               "trtllm_kv_cache_utilization")  # fmt: skip
"""Share of the cache in use, from 0 to 1, by vLLM (two names), SGLang and TensorRT-LLM."""
RUNNING_NAMES = ("vllm:num_requests_running", "sglang:num_running_reqs")
PREEMPTION_NAMES = ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total")
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+|NaN)(?:\s+\d+)?$")


@dataclass(slots=True, kw_only=True)
class ServerReadings:
    """Readings over one load; empty where the server reports nothing."""

    cache_fracs: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    preemptions: list[float] = field(default_factory=list)
    """A counter: only its growth counts."""

    def add(self, text: str) -> None:
        samples = parse_metrics(text)
        for names, readings in (
            (CACHE_NAMES, self.cache_fracs), (RUNNING_NAMES, self.running), (PREEMPTION_NAMES, self.preemptions),
        ):  # fmt: skip
            known = [samples[name] for name in names if name in samples]
            if known:
                readings.append(known[0])

    @property
    def num_preemptions(self) -> int | None:
        return round(self.preemptions[-1] - self.preemptions[0]) if self.preemptions else None


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of a Prometheus page by name, those of several labels added up."""
    samples: dict[str, float] = {}
    for name, value in _samples(text.splitlines()):
        samples[name] = samples.get(name, 0.0) + value
    return samples


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, float]]:
    for line in lines:
        match = _SAMPLE.match(line.strip())
        if match:
            yield match.group(1), float(match.group(2))
