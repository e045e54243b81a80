"""One step of reinforcement learning: its samples, where trainer and generator run, and how far apart they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from scalewright.errors import ConfigError
from scalewright.workload.grammar import assignments, whole_number
from scalewright.workload.lengths import LengthDistribution, LogNormalLength, fixed, lengths_with_limit
from scalewright.workload.precision import Recipe, recipe

Sync = Literal["gather_broadcast", "peer_to_peer", "file"]
SYNC_WORDS: dict[str, Sync] = {"broadcast": "gather_broadcast", "peers": "peer_to_peer", "file": "file"}
NEEDED = ("prompts", "samples", "prompt", "response")
WHOLE_FIELDS = {
    "prompts": "num_prompts", "samples": "num_responses", "prompt": "prompt_len", "response": "response_len",
    "longest": "longest_len", "tp": "rollout_tp", "pp": "rollout_pp", "gpus": "rollout_gpus", "lag": "lag",
    "chunks": "num_chunks", "tokens": "pack_tokens", "budget": "token_budget", "retention": "retention",
    "staleness": "staleness",
}  # fmt: skip
SWITCH_FIELDS = {
    "ref": "has_reference", "old": "scores_old", "pack": "packs", "keep": "keeps_state", "loop": "loops_experts",
}  # fmt: skip
OPTIONAL = (
    *(key for key in WHOLE_FIELDS if key not in NEEDED), *SWITCH_FIELDS,
    "cv", "stale", "sync", "reward", "memory", "precision",
)  # fmt: skip
FROM_ZERO = ("lag", "gpus", "budget", "staleness")
"""Whole numbers that may be 0: nothing of it."""
CHANGED_NAMES = {"gen_tp": "tp", "gen_pp": "pp", "gen_precision": "precision"}
"""Names in a what-if, where a layout has knobs of the same name."""
CHANGED_KEYS = (*CHANGED_NAMES, *(key for key in (*NEEDED, *OPTIONAL) if key not in ("tp", "pp", "precision")))


@dataclass(frozen=True, slots=True, kw_only=True)
class RlStep:
    """One GRPO step. The layout of the question is the trainer's: its gbs is the mini-batch, so a step has
    prompts x responses / gbs updates."""

    num_prompts: int
    num_responses: int
    """Answers per prompt."""
    prompt_len: int
    response_len: int
    """Mean length of the answers."""
    longest_len: int | None = None
    """Longest answer; None: all answers have the mean length."""
    cv: float | None = None
    """Standard deviation over mean of the answers, before the longest cuts them off; None: as usual."""
    rollout_tp: int = 1
    """Tensor parallelism of the generator, which may differ from the trainer's."""
    rollout_pp: int = 1
    """Pipeline parallelism of the generator."""
    rollout_gpus: int = 0
    """Devices of the generator beside the trainer's; 0: both take turns on the trainer's devices."""
    lag: int = 0
    """Batches that the generator may be ahead of the trainer: 0 on policy, 1 one-step-off."""
    staleness_frac: float = 0.0
    """Part of a batch that may be begun with older weights and finished with newer ones: above 0 asynchronous."""
    token_budget: int = 0
    """Tokens that an iteration decodes before it trains: unfinished answers go on in the next one; 0: all are waited
    for."""
    retention: int = 2
    """An answer that was cut so often is given up, where there is a budget."""
    staleness: int | None = None
    """Versions that the oldest token of a trained answer may be behind the trainer; None: no bound beside the lag and
    the retention."""
    num_chunks: int = 1
    """Parts of a batch that the trainer takes as they are finished, on devices of its own."""
    rollout_recipe: Recipe | None = None
    """Precision of the generator; None: the trainer's."""
    rollout_memory_frac: float | None = None
    """Share of a device's memory that the generator fills; None: what serving engines take."""
    reward_s: float = 0.0
    """Time of the reward in each step."""
    has_reference: bool = True
    """Answers are scored by a reference model too."""
    scores_old: bool = True
    """The trainer scores the answers before it updates; false: the generator's log-probabilities are used."""
    sync: Sync = "gather_broadcast"
    """How new weights reach the generator."""
    packs: bool = True
    """Micro-batches are filled with whole sequences up to a number of tokens; false: sequences are padded."""
    pack_tokens: int | None = None
    """Tokens of a micro-batch of packed sequences; None: the fastest of 1,024 to 16,384 that memory has room for, or
    `mbs` padded sequences where those are faster, as in a pipeline with few micro-batches."""
    loops_experts: bool = False
    """A rank's experts run one by one in the trainer; false: in grouped products."""
    keeps_state: bool = False
    """The trainer's state stays on the devices while they generate; false: it waits on the hosts."""

    def __post_init__(self) -> None:
        self._check_budget()
        if self.is_split:
            return
        for name, value in (("lag", self.lag), ("stale", self.staleness_frac), ("chunks", self.num_chunks - 1)):
            if value:
                raise ConfigError(
                    f"{name} needs a generator on devices of its own: trainer and generator take turns otherwise; add "
                    "gpus="
                )

    def _check_budget(self) -> None:
        longest = self.longest_sequence - self.prompt_len
        if 0 < self.token_budget < longest:
            raise ConfigError(
                f"rl has budget={self.token_budget}, smaller than one answer of {longest} tokens: raise budget, or set "
                "it to 0 for none"
            )
        if self.token_budget and self.staleness_frac:
            raise ConfigError(
                "rl has budget and stale, and both let answers go on into the next step: give one of them"
            )
        if self.staleness == 0 and self.staleness_frac:
            raise ConfigError(
                f"rl has stale={self.staleness_frac:g} and staleness=0, and a stale answer is one version behind: "
                "raise staleness to 1, or set stale=0"
            )
        if self.staleness is not None and self.lag > self.staleness:
            raise ConfigError(
                f"rl has lag={self.lag}, above staleness={self.staleness}: the generator may be no further ahead than "
                "that; lower lag"
            )

    @property
    def num_sequences(self) -> int:
        return self.num_prompts * self.num_responses

    @property
    def has_tail(self) -> bool:
        """Some answers are longer than others."""
        return self.longest_len is not None and self.longest_len > self.response_len

    @property
    def is_split(self) -> bool:
        """Trainer and generator have devices of their own."""
        return self.rollout_gpus > 0

    def answers(self, *, least_cv: float, limit_frac: float) -> LengthDistribution:
        """How long answers are. Where the step does not say how far they spread: at least by `least_cv`, and so far
        that the share `limit_frac` of them reaches the longest."""
        if self.longest_len is None or not self.has_tail:
            return fixed(self.response_len)
        if self.cv is None:
            return lengths_with_limit(self.response_len, self.longest_len, least_cv=least_cv, limit_frac=limit_frac)
        return LogNormalLength(num_mean=self.response_len, cv=self.cv, num_max=self.longest_len)

    @property
    def longest_sequence(self) -> int:
        """Prompt and longest answer."""
        return self.prompt_len + max(self.longest_len or 0, self.response_len)

    @property
    def policy(self) -> str:
        """How old the weights are that wrote the answers."""
        if self.staleness_frac > 0.0:
            return "asynchronous"
        if self.token_budget:
            return "token budget" if self.lag == 0 else f"{self.lag}-step off, token budget"
        return "on policy" if self.lag == 0 else f"{self.lag}-step off"

    @property
    def usual_budget(self) -> int:
        """Tokens of a step's answers on average: with this budget an iteration trains on about as many."""
        return max(self.num_sequences * self.response_len, self.longest_sequence - self.prompt_len)


def parse_rl(text: str) -> RlStep:
    """`prompts=128,samples=8,prompt=512,response=1024` and what is not as usual."""
    written = assignments(text, allowed=(*NEEDED, *OPTIONAL), what="rl")
    missing = [key for key in NEEDED if key not in written]
    if missing:
        raise ConfigError(f"rl {text!r} lacks {', '.join(missing)}: write {','.join(f'{k}=N' for k in NEEDED)}")
    return RlStep(**_with_lag(_fields(written), is_split="gpus" in written and written["gpus"] != "0"))


def named_parts(text: str) -> frozenset[str]:
    """The parts that the words of a step name, whose values nobody chooses otherwise."""
    return frozenset(assignments(text, allowed=(*NEEDED, *OPTIONAL), what="rl"))


def _with_lag(fields: dict[str, Any], *, is_split: bool) -> dict[str, Any]:
    """A bound of staleness is how far a generator of its own runs ahead, unless a lag says otherwise."""
    if is_split and "staleness" in fields and "lag" not in fields:
        return fields | {"lag": fields["staleness"]}
    return fields


def changed_step(step: RlStep, written: dict[str, str]) -> RlStep:
    """The step with some parts set otherwise; the generator's split is `gen_tp` and `gen_pp` beside a layout's."""
    fields = _fields({CHANGED_NAMES.get(key, key): value for key, value in written.items()})
    return replace(step, **_with_lag(fields, is_split=fields.get("rollout_gpus", step.rollout_gpus) > 0))


def _fields(written: dict[str, str]) -> dict[str, Any]:
    """Fields of a step by the words that people write."""
    fields: dict[str, Any] = {}
    for key, value in written.items():
        if key in WHOLE_FIELDS:
            least = 0 if key in FROM_ZERO else 1
            fields[WHOLE_FIELDS[key]] = whole_number(value, key=key, what="rl", least=least)
        elif key in SWITCH_FIELDS:
            fields[SWITCH_FIELDS[key]] = _switch(key, value)
        elif key == "cv":
            fields["cv"] = _number(key, value)
        elif key == "stale":
            fields["staleness_frac"] = _number(key, value, least=0.0)
        elif key == "reward":
            fields["reward_s"] = _number(key, value, least=0.0)
        elif key == "memory":
            fields["rollout_memory_frac"] = _share(value)
        elif key == "precision":
            fields["rollout_recipe"] = recipe(value)
        else:
            fields["sync"] = _sync(value)
    return fields


def _number(key: str, text: str, *, least: float = 1e-9) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"rl has {key}={text}, which is not a number: write {key}=0.5") from error
    if not least <= value < 1e9:
        rule = "0 or more" if least == 0.0 else "above 0"
        raise ConfigError(f"rl has {key}={text}: {key} must be {rule}")
    return value


def _share(text: str) -> float:
    share = _number("memory", text)
    if share > 1.0:
        raise ConfigError(f"rl has memory={text}: it is a share of a device's memory, such as 0.6")
    return share


def _switch(key: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise ConfigError(f"rl has {key}={value}: {key} is 0 (no) or 1 (yes)")
    return value == "1"


def _sync(word: str) -> Sync:
    if word not in SYNC_WORDS:
        raise ConfigError(f"rl has sync={word}: choose {', '.join(SYNC_WORDS)}")
    return SYNC_WORDS[word]
