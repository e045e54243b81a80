"""RolloutPool: which answers are written now, carried to the next iteration, given up, and trained on.

The policy is C3PO++ of Ring-1T (ling2025, arXiv:2510.18855): an iteration is bounded by the tokens it writes, not by
its slowest answer. Its six steps, with the names used here (steps 1, 4 and 6 are described in public texts, steps 2, 3
and 5 are our reading of them):

1. `begin` gives up open rollouts that were cut `retention` times or more (sigma).
2. `begin` fills free places with fresh prompts.
3. Whoever drives the pool decodes `open` with the weights of this version; a rollout that ended moves to the training
   pool (`finished`), and its place is filled at once.
4. `is_over` says that this iteration wrote `token_budget` tokens (Phi).
5. `end` hands out the training pool. Each token keeps the log-probability of the version that drew it.
6. `end` keeps open rollouts with one cut more. After the weight sync they go on from their prefix.

The published text leaves four things open. The choices made here:

- Tokens that are written in this iteration count towards the budget. Tokens of a prefix that an engine reads again do
  not: reading costs little beside writing, and counting it would shorten iterations after many cuts.
- `groups` decides when the answers to one prompt are trained if they ended in different iterations.
- `old_tokens` decides whether tokens of older versions take part in the loss. They are kept in either case, because an
  answer is only rewarded as a whole.
- An answer that was given up counts as missing: its group is trained without it, if two answers or more are left. So
  answers longer than `retention` iterations allow are never trained on, and training sees shorter answers than the
  policy writes. A larger budget or `retention` lowers that share; `num_wasted` measures it.

A budget of 0 waits for all: an iteration opens `num_prompts` prompts and is over when all their answers ended. Nothing
here knows a clock, a device or a file: the co-located stage, the controller of separate roles and the simulator drive
the same code.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from scalewright.errors import ConfigError

RolloutId = str
"""The prompt's place in the endless row of training problems and the number of the answer, such as "17:3"."""
Groups = Literal["whole", "parts"]
OldTokens = Literal["train", "mask"]
LEAST_GROUP = 2
"""An advantage compares answers to one prompt, so one answer alone teaches nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What decides the way of a pool."""

    token_budget: int
    """Tokens that an iteration writes, over all engines (Phi); 0: until all answers of the iteration ended."""
    retention: int = 2
    """An open rollout that was cut so often is given up (sigma); 1: nothing is carried over."""
    num_prompts: int
    """Prompts of an iteration without a budget. With one, prompts are opened as places become free."""
    num_answers: int
    """Answers to each prompt: the group."""
    max_open: int
    """Rollouts that are decoded at once, over all engines."""
    groups: Groups = "whole"
    """whole: a group is trained when all its answers ended; parts: those that ended in this iteration are trained in
    it, with advantages over them alone, if they are two or more."""
    old_tokens: OldTokens = "train"
    """train: with the log-probability recorded when they were drawn; mask: they take no part in the loss."""

    def __post_init__(self) -> None:
        if self.token_budget < 0:
            raise ConfigError(f"the token budget is {self.token_budget}: give 1 or more, or 0 to wait for all answers")
        if self.retention < 1:
            raise ConfigError(
                f"the retention limit is {self.retention}, which gives up every rollout before it is written: give 1 "
                "(nothing is carried over) or more"
            )
        for name in ("num_prompts", "num_answers", "max_open"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name, choices in (("groups", Groups), ("old_tokens", OldTokens)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name} {getattr(self, name)!r} is not known: choose {', '.join(get_args(choices))}")


def _packed(code: Literal["i", "d"], values: Sequence[float]) -> str:
    """Numbers as text: base64 of little-endian 32-bit integers or 64-bit floats, without loss."""
    numbers = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _unpacked(code: Literal["i", "d"], text: str) -> list[Any]:
    numbers = array(code, base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


@dataclass(slots=True, kw_only=True)
class OpenRollout:
    """An answer that is being written."""

    prompt_place: int
    """In the endless row of training problems."""
    index: int
    """Which of the prompt's answers, from 0."""
    num_cuts: int = 0
    """Iterations that ended while it was being written."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """Of each token under the weights that drew it."""
    version_runs: list[list[int]] = field(default_factory=list)
    """[version, number of tokens], in the order of the tokens."""

    @property
    def id(self) -> RolloutId:
        return f"{self.prompt_place}:{self.index}"

    @property
    def group(self) -> int:
        return self.prompt_place

    @property
    def num_tokens(self) -> int:
        return sum(num for _, num in self.version_runs)

    @property
    def versions(self) -> list[int]:
        """Of the weights that drew each token."""
        return [version for version, num in self.version_runs for _ in range(num)]

    @property
    def oldest_version(self) -> int | None:
        """Of its first token; None before that."""
        return self.version_runs[0][0] if self.version_runs else None

    def is_older(self, version: int) -> bool:
        """Whether weights before this version drew a token of it."""
        return bool(self.version_runs) and self.version_runs[0][0] < version

    def num_older(self, version: int) -> int:
        """Tokens that weights before this version drew."""
        return sum(num for own, num in self.version_runs if own < version)

    def add(self, num: int, version: int) -> None:
        """Count tokens of a version, which is at least that of the token before."""
        last = self.version_runs[-1] if self.version_runs else None
        if last is not None and version < last[0]:
            raise ValueError(f"rollout {self.id}: a token of version {version} after one of version {last[0]}")
        if last is not None and version == last[0]:
            last[1] += num
        elif num:
            self.version_runs.append([version, num])

    def to_row(self) -> dict[str, Any]:
        """In types of JSON. Tokens and log-probabilities are packed: a pool may hold many millions of them."""
        return {
            "prompt_place": self.prompt_place,
            "index": self.index,
            "num_cuts": self.num_cuts,
            "tokens": _packed("i", self.tokens),
            "log_probs": _packed("d", self.log_probs),
            "version_runs": [list(run) for run in self.version_runs],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> OpenRollout:
        return cls(
            prompt_place=row["prompt_place"], index=row["index"], num_cuts=row["num_cuts"],
            tokens=_unpacked("i", row["tokens"]), log_probs=_unpacked("d", row["log_probs"]),
            version_runs=[list(run) for run in row["version_runs"]],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRollout:
    """An answer that ended."""

    rollout: OpenRollout
    reason: str
    """Why it ended, in the words of the engine."""
    _row: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Nothing of it changes any more, so it is packed once for all checkpoints."""

    def to_row(self) -> dict[str, Any]:
        if not self._row:
            self._row.update(rollout=self.rollout.to_row(), reason=self.reason)
        return self._row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> FinishedRollout:
        return cls(rollout=OpenRollout.from_row(row["rollout"]), reason=row["reason"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainGroup:
    """Answers to one prompt that are compared with each other."""

    prompt_place: int
    answers: list[FinishedRollout]
    """In the order of their index."""

    @property
    def num_tokens(self) -> int:
        return sum(one.rollout.num_tokens for one in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult:
    """What an iteration leaves."""

    version: int
    """Of the weights that the iteration began with."""
    trained: list[TrainGroup]
    """In the order of their prompts."""
    carried: list[RolloutId]
    """Open rollouts with tokens. Each was cut once more."""
    purged: list[RolloutId]
    """Given up when the iteration began."""
    num_tokens: int
    """Written in this iteration."""
    num_wasted: int
    """Tokens that nothing will be trained on: of rollouts given up when the iteration began, and of single answers
    whose group has no other."""

    @property
    def num_trained(self) -> int:
        """Tokens of the groups that are trained on, written in this iteration or before."""
        return sum(group.num_tokens for group in self.trained)


@dataclass(slots=True, kw_only=True)
class _GroupState:
    """A prompt whose answers are not all dealt with."""

    num_missing: int
    """Answers that neither ended nor were given up."""
    ended: list[FinishedRollout] = field(default_factory=list)
    """Not trained on yet."""


@dataclass(slots=True, kw_only=True)
class PoolCounts:
    """Tokens since the pool was made. Written ones are trained, wasted or carried; the rest is held by the pool."""

    num_written: int = 0
    num_trained: int = 0
    num_wasted: int = 0
    num_purged: int = 0
    """Rollouts, not tokens."""

    @property
    def num_carried(self) -> int:
        """Tokens of open rollouts, and of answers that wait for their group."""
        return self.num_written - self.num_trained - self.num_wasted


class RolloutPool:
    """The state between two calls is all there is: a pool restored from its document goes the same way."""

    def __init__(self, settings: PoolSettings, next_place: int = 0) -> None:
        self.settings = settings
        self.next_place = next_place
        """Place of the next fresh prompt."""
        self.counts = PoolCounts()
        self.num_tokens = 0
        """Written in this iteration."""
        self.version = -1
        """Of the weights that this iteration began with."""
        self._is_running = False
        self._open: dict[RolloutId, OpenRollout] = {}
        self._waiting: deque[OpenRollout] = deque()
        """Fresh rollouts of opened prompts that have no place yet."""
        self._groups: dict[int, _GroupState] = {}
        self._purged: list[RolloutId] = []
        self._num_wasted = 0

    @property
    def open(self) -> list[OpenRollout]:
        """Rollouts to decode now: carried ones first, then in the order in which they got a place."""
        return list(self._open.values())

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_left(self) -> int:
        """Tokens that this iteration may still write; 0 without a budget."""
        return max(self.settings.token_budget - self.num_tokens, 0)

    @property
    def oldest_place(self) -> int:
        """Of a prompt whose answers are not all dealt with; the next fresh one where there is none."""
        return next(iter(self._groups), self.next_place)

    @property
    def is_running(self) -> bool:
        """Between `begin` and `end`."""
        return self._is_running

    @property
    def is_over(self) -> bool:
        """The budget of this iteration is reached or, without one, all its answers ended."""
        budget = self.settings.token_budget
        return self.num_tokens >= budget if budget else not self._open

    def is_open(self, rollout: RolloutId) -> bool:
        return rollout in self._open

    def opened(self, rollout: RolloutId) -> OpenRollout:
        """An open rollout by its id."""
        return self._open[rollout]

    @property
    def ended(self) -> list[FinishedRollout]:
        """Answers that ended and are not handed out yet."""
        return [one for state in self._groups.values() for one in state.ended]

    def begin(self, version: int, *, least_version: int = 0, kept: Collection[RolloutId] = ()) -> None:
        """Start an iteration with weights of this version.

        Open rollouts with a token of a version before `least_version` are given up as well: they would be too stale.
        `kept` are not given up.
        """
        if self._is_running:
            raise ValueError("the iteration before has not ended")
        if version < self.version:
            raise ValueError(f"version {version} after version {self.version}")
        self.version, self._is_running = version, True
        self.num_tokens = self._num_wasted = 0
        self._purged = [
            one.id
            for one in self._open.values()
            if (one.num_cuts >= self.settings.retention or one.is_older(least_version)) and one.id not in kept
        ]
        for rollout in self._purged:
            self._give_up(rollout)
        if not self.settings.token_budget:
            for _ in range(self.settings.num_prompts):
                self._open_prompt()
        self._fill()

    def wrote(self, rollout: RolloutId, tokens: Sequence[int], log_probs: Sequence[float], version: int) -> None:
        """Tokens that an engine drew with weights of this version."""
        if len(tokens) != len(log_probs):
            raise ValueError(f"rollout {rollout}: {len(tokens)} tokens with {len(log_probs)} log-probabilities")
        self.counted(rollout, len(tokens), version)
        self._open[rollout].tokens += tokens
        self._open[rollout].log_probs += log_probs

    def counted(self, rollout: RolloutId, num_tokens: int, version: int) -> None:
        """Like `wrote` for tokens whose values nobody needs, as in a simulation."""
        self._check_open(rollout)
        self._open[rollout].add(num_tokens, version)
        self.num_tokens += num_tokens
        self.counts.num_written += num_tokens

    def finished(self, rollout: RolloutId, reason: str) -> list[OpenRollout]:
        """The answer ended: it moves to the training pool. Returned are those that got its place."""
        self._check_open(rollout)
        one = self._open.pop(rollout)
        state = self._groups[one.group]
        state.num_missing -= 1
        state.ended.append(FinishedRollout(rollout=one, reason=reason))
        return self._fill()

    def end(self) -> IterationResult:
        """Hand out the training pool. Open rollouts stay, cut once more if they have tokens."""
        if not self._is_running:
            raise ValueError("no iteration has begun")
        self._is_running = False
        carried = [one for one in self._open.values() if one.version_runs]
        for one in carried:
            one.num_cuts += 1
        trained = [self._taken(place) for place in sorted(self._groups) if self._is_ready(self._groups[place])]
        for place in [place for place, state in self._groups.items() if not state.num_missing]:
            left = sum(one.rollout.num_tokens for one in self._groups.pop(place).ended)
            self._waste(left)
        result = IterationResult(
            version=self.version, trained=trained, carried=[one.id for one in carried], purged=self._purged,
            num_tokens=self.num_tokens, num_wasted=self._num_wasted,
        )  # fmt: skip
        self.counts.num_trained += result.num_trained
        return result

    def to_document(self) -> dict[str, Any]:
        """The whole state, in types of JSON."""
        return {
            "settings": asdict(self.settings),
            "next_place": self.next_place,
            "counts": asdict(self.counts),
            "num_tokens": self.num_tokens,
            "version": self.version,
            "is_running": self._is_running,
            "open": [one.to_row() for one in self._open.values()],
            "waiting": [one.to_row() for one in self._waiting],
            "groups": [
                {"place": place, "num_missing": state.num_missing, "ended": [one.to_row() for one in state.ended]}
                for place, state in self._groups.items()
            ],
            "purged": list(self._purged),
            "num_wasted": self._num_wasted,
        }

    @classmethod
    def from_document(cls, body: Mapping[str, Any]) -> RolloutPool:
        try:
            return cls._restored(body)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the state of the rollout pool is not as this version writes it ({error}): choose another checkpoint"
            ) from error

    @classmethod
    def _restored(cls, body: Mapping[str, Any]) -> RolloutPool:
        pool = cls(PoolSettings(**body["settings"]), next_place=body["next_place"])
        pool.counts = PoolCounts(**body["counts"])
        pool.num_tokens, pool.version, pool._is_running = body["num_tokens"], body["version"], body["is_running"]
        pool._open = {one.id: one for one in map(OpenRollout.from_row, body["open"])}
        pool._waiting = deque(map(OpenRollout.from_row, body["waiting"]))
        for state in body["groups"]:
            ended = [FinishedRollout.from_row(row) for row in state["ended"]]
            pool._groups[state["place"]] = _GroupState(num_missing=state["num_missing"], ended=ended)
        pool._purged, pool._num_wasted = list(body["purged"]), body["num_wasted"]
        return pool

    def _check_open(self, rollout: RolloutId) -> None:
        if not self._is_running or rollout not in self._open:
            raise ValueError(f"rollout {rollout} is not open")

    def _open_prompt(self) -> None:
        num = self.settings.num_answers
        self._groups[self.next_place] = _GroupState(num_missing=num)
        self._waiting.extend(OpenRollout(prompt_place=self.next_place, index=index) for index in range(num))
        self.next_place += 1

    def _fill(self) -> list[OpenRollout]:
        """Give free places to waiting rollouts; with a budget that is not reached, to fresh prompts as well."""
        opened: list[OpenRollout] = []
        while len(self._open) < self.settings.max_open:
            if not self._waiting and self.num_left:
                self._open_prompt()
            if not self._waiting:
                break
            opened.append(self._waiting.popleft())
            self._open[opened[-1].id] = opened[-1]
        return opened

    def _give_up(self, rollout: RolloutId) -> None:
        one = self._open.pop(rollout)
        self._groups[one.group].num_missing -= 1
        self.counts.num_purged += 1
        self._waste(one.num_tokens)

    def _waste(self, num_tokens: int) -> None:
        self._num_wasted += num_tokens
        self.counts.num_wasted += num_tokens

    def _is_ready(self, state: _GroupState) -> bool:
        is_large_enough = len(state.ended) >= min(LEAST_GROUP, self.settings.num_answers)
        return is_large_enough and (self.settings.groups == "parts" or not state.num_missing)

    def _taken(self, place: int) -> TrainGroup:
        state = self._groups[place]
        answers, state.ended = sorted(state.ended, key=lambda one: one.rollout.index), []
        return TrainGroup(prompt_place=place, answers=answers)
