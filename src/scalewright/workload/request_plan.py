"""The requests of a generation benchmark: how many, how long, when each is due, and what its prompt holds.

Everything follows from the plan and its seed, so that a resumed run asks for the same again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright import units
from scalewright.data.reasoning.prompt_files import prompt_text, shown
from scalewright.errors import ConfigError
from scalewright.records.loader import read_jsonl
from scalewright.workload.lengths import LengthDistribution, lengths_seen, parse_lengths

MOST_REQUESTS = 1_000_000
NUM_PLAIN_IDS = 1000
"""Token ids of made-up prompts are below this where the vocabulary is not known: every model has so many."""
FIRST_PLAIN_ID = 10
"""Ids below are special in many vocabularies: padding, start, end."""
PROMPT_KEYS = ("prompt", "prompt_tokens", "prompt_len", "input_length")
ANSWER_KEYS = ("answer_len", "output_length")
"""Ours, and those of the traces that Mooncake published."""
ARRIVAL_KEYS = ("arrival_s", "timestamp")
WORDS = ("time", "of", "the", "model", "and", "a", "large", "word", "that", "is", "on", "with", "data", "for", "node",
         "to", "in", "step", "are", "new")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """What is asked for. With a file, its prompts and lengths stand in the place of the two distributions."""

    prompt_lengths: str = "512"
    answer_lengths: str = "128"
    file: str = ""
    """JSON lines of lengths or prompts, by the full path; empty: prompts are made up."""
    file_digest: str = ""
    """Of its content, so that a changed file is another run."""
    num_requests: int = 64
    num_answers: int = 1
    """To each prompt."""
    num_requests_per_s: tuple[float, ...] = ()
    """Rates of Poisson arrivals, one load after another; empty: all requests are due at once."""
    uses_file_times: bool = False
    """Requests are due as the file says."""
    most_at_once: int = 0
    """Requests in flight; 0: no limit."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("--num", self.num_requests), ("--answers", self.num_answers)):
            if not 1 <= value <= MOST_REQUESTS:
                raise ConfigError(f"{name} {value}: give 1 to {MOST_REQUESTS:,}")
        if self.most_at_once < 0:
            raise ConfigError(f"--concurrency {self.most_at_once}: give 1 or more, or 0 for no limit")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed {self.seed} must be from 0 up to 2^63")
        wrong = [rate for rate in self.num_requests_per_s if not 0.0 < rate < float("inf")]
        if wrong:
            raise ConfigError(f"--rate {wrong[0]:g}: a rate of arrivals is above 0 requests a second")
        if self.uses_file_times and self.num_requests_per_s:
            raise ConfigError("--rate gives rates and file: give one of them")
        parse_lengths(self.prompt_lengths, what="--prompt-lengths")
        parse_lengths(self.answer_lengths, what="--answer-lengths")

    @property
    def has_texts(self) -> bool:
        """Whether a prompt is given as text."""
        return bool(self.file) and any(row.text for row in read_requests(Path(self.file)))

    @property
    def num_loads(self) -> int:
        return max(len(self.num_requests_per_s), 1)

    def load_words(self, load: int) -> str:
        """A load as tables name it."""
        if self.uses_file_times:
            return "file"
        return f"{self.num_requests_per_s[load]:g}/s" if self.num_requests_per_s else "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One line of a file of requests."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    num_prompt: int
    """0: as many as the text has."""
    num_answer: int
    """0: the line does not say."""
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of a load."""

    number: int
    load: int
    num_prompt: int
    num_answer: int
    """Tokens to generate for each answer."""
    arrival_s: float
    text: str = ""
    """The prompt; empty where it is made up or given by its tokens."""
    tokens: tuple[int, ...] = ()


def read_requests(path: Path) -> list[FileRow]:
    """The lines of a file of requests. One without a prompt and its length is refused, and so is an empty file."""
    rows = [_row(row, where=f"{path}, line {number}") for number, row in read_jsonl(path)]
    if not rows:
        raise ConfigError(f"{path}: holds no requests: write one JSON object a line, such as {EXAMPLE}")
    return rows


EXAMPLE = '{"prompt_len": 512, "answer_len": 128}'


def _row(row: Mapping[str, Any], *, where: str) -> FileRow:
    prompts = [key for key in PROMPT_KEYS if key in row]
    if len(prompts) != 1:
        what = "none" if not prompts else " and ".join(prompts)
        raise ConfigError(f"{where}: a request has one of {', '.join(PROMPT_KEYS)}, this one {what}: write {EXAMPLE}")
    answers = [key for key in ANSWER_KEYS if key in row]
    arrivals = [key for key in ARRIVAL_KEYS if key in row]
    num_answer = _length(row[answers[0]], key=answers[0], where=where) if answers else 0
    arrival_s = _arrival_s(row, arrivals[0], where=where) if arrivals else None
    key, given = prompts[0], row[prompts[0]]
    if key == "prompt":
        text = prompt_text(given, where=where)
        return FileRow(text=text, num_prompt=0, num_answer=num_answer, arrival_s=arrival_s)
    if key == "prompt_tokens" and isinstance(given, list):
        if not given or not all(isinstance(token, int) and token >= 0 for token in given):
            raise ConfigError(f"{where}: prompt_tokens is {shown(given)}: give token ids of 0 or more, at least one")
        return FileRow(tokens=tuple(given), num_prompt=len(given), num_answer=num_answer, arrival_s=arrival_s)
    return FileRow(num_prompt=_length(given, key=key, where=where), num_answer=num_answer, arrival_s=arrival_s)


def _length(value: object, *, key: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{where}: {key} is {shown(value)}: a length is a whole number of 1 or more")
    return value


def _arrival_s(row: Mapping[str, Any], key: str, *, where: str) -> float:
    value = row[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value < float("inf"):
        raise ConfigError(f"{where}: {key} is {shown(value)}: give a time of 0 or more")
    return float(value) * (units.MILLI if key == "timestamp" else 1.0)


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def planned_loads(plan: RequestPlan) -> list[list[PlannedRequest]]:
    """The requests of each load, in the order in which they are due."""
    rows = read_requests(Path(plan.file)) if plan.file else []
    return [_load(plan, rows, load) for load in range(plan.num_loads)]


def _load(plan: RequestPlan, rows: list[FileRow], load: int) -> list[PlannedRequest]:
    num = plan.num_requests
    rng = np.random.default_rng([plan.seed, load])
    prompts = parse_lengths(plan.prompt_lengths).sample(rng, num)
    answers = parse_lengths(plan.answer_lengths).sample(rng, num)
    arrivals = _arrivals(plan, rows, rng, load)
    requests = []
    for number in range(num):
        row = rows[number % len(rows)] if rows else FileRow(num_prompt=int(prompts[number]), num_answer=0)
        requests.append(
            PlannedRequest(
                number=number, load=load, num_prompt=row.num_prompt, num_answer=row.num_answer or int(answers[number]),
                arrival_s=float(arrivals[number]), text=row.text, tokens=row.tokens,
            )
        )  # fmt: skip
    return sorted(requests, key=lambda request: request.arrival_s)


def _arrivals(plan: RequestPlan, rows: list[FileRow], rng: np.random.Generator, load: int) -> list[float]:
    if plan.uses_file_times:
        times = [row.arrival_s for row in rows[: plan.num_requests]]
        known = [time for time in times if time is not None]
        if len(known) < plan.num_requests:
            raise ConfigError(
                f"{plan.file}: {len(known)} lines say when a request is due, and {plan.num_requests} are needed: add "
                f"{' or '.join(ARRIVAL_KEYS)} to each line, or give a lower --num"
            )
        return [time - min(known) for time in known]
    if not plan.num_requests_per_s:
        return [0.0] * plan.num_requests
    gaps = rng.exponential(1.0 / plan.num_requests_per_s[load], plan.num_requests)
    return [float(time) for time in np.cumsum(gaps) - gaps[0]]


def made_up_tokens(plan: RequestPlan, request: PlannedRequest, *, vocab: int) -> tuple[int, ...]:
    """A prompt's token ids: those of the file, or random ones that no other request shares."""
    if request.tokens:
        return request.tokens
    first = FIRST_PLAIN_ID if vocab > 2 * FIRST_PLAIN_ID else 0
    rng = np.random.default_rng([plan.seed, request.load, request.number, 1])
    return tuple(int(token) for token in rng.integers(first, vocab, request.num_prompt))


def made_up_text(plan: RequestPlan, request: PlannedRequest) -> str:
    """A prompt of about as many tokens: short words are one token each in most vocabularies."""
    if request.text:
        return request.text
    rng = np.random.default_rng([plan.seed, request.load, request.number, 1])
    return " ".join(WORDS[place] for place in rng.integers(0, len(WORDS), request.num_prompt))


def length_distributions(plan: RequestPlan) -> tuple[LengthDistribution, LengthDistribution]:
    """Lengths of prompts and answers as a prediction takes them. Prompts of text have no length yet."""
    prompts, answers = parse_lengths(plan.prompt_lengths), parse_lengths(plan.answer_lengths)
    if not plan.file:
        return prompts, answers
    requests = planned_loads(plan)[0]
    name = Path(plan.file).name
    known = [request.num_prompt for request in requests if request.num_prompt]
    return (
        lengths_seen(known, origin=name) if known else prompts,
        lengths_seen([request.num_answer for request in requests], origin=name),
    )
