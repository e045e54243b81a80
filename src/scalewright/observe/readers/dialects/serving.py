"""vLLM and SGLang: samples of a server's load. They have no steps, so that samples are counted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.observe.readers.dialects.values import NUMBER, Name, Report, number
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_PAIR = re.compile(rf"(#?[A-Za-z][\w #()/-]{{0,60}}?):\s*({NUMBER}|nan)\s*(%)?")
NAMES = {
    "Avg generation throughput": Name("tokens_per_s"), "gen throughput (token/s)": Name("tokens_per_s"),
    "generation throughput": Name("tokens_per_s"),
}  # fmt: skip
VALUES = {
    "Avg prompt throughput": "prompt_tokens_per_s", "input throughput (token/s)": "prompt_tokens_per_s",
    "Running": "running_requests", "Waiting": "waiting_requests", "Swapped": "swapped_requests",
    "Pending": "waiting_requests", "#running-req": "running_requests", "#queue-req": "waiting_requests",
    "GPU KV cache usage": "kv_cache_frac", "token usage": "kv_cache_frac", "full token usage": "kv_cache_frac",
    "CPU KV cache usage": "cpu_kv_cache_frac", "Prefix cache hit rate": "prefix_hit_frac",
    "cache hit rate": "prefix_hit_frac", "#new-token": "new_tokens", "#cached-token": "cached_tokens",
    "#new-seq": "new_requests", "accept len": "accepted_tokens", "Preempted": "preempted_requests",
}  # fmt: skip
"""Names that findings look at."""


class ServingReader(LineReader):
    """Lines of load of vLLM (every ten seconds) and of SGLang (prefill and decode batches)."""

    kind = "serving log"
    hints = ("Avg prompt throughput:", "Prefill batch", "Decode batch")

    def __init__(self) -> None:
        self._num = {"vllm": 0, "sglang": 0}

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        start = max(text.find(mark) for mark in self.hints)
        if start < 0:
            return
        report = Report()
        for key, value, percent in _PAIR.findall(text, start):
            parsed = number(value)
            if parsed is not None:
                share = parsed / 100 if percent else parsed
                report.put(NAMES.get(key), VALUES.get(key, key.strip("# ")), share)
        if not report:
            return
        dialect = "vllm" if "Avg prompt throughput" in text else "sglang"
        self._num[dialect] += 1
        yield report.fact(self._num[dialect], line.spot, dialect, rank=line.rank, at_s=line.at_s)
