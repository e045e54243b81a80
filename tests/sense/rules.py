"""Rules of sense: how one is declared, asked, counted, and how its counterexample is made small."""

from __future__ import annotations

import json
import math
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from scalewright.errors import ScalewrightError
from sense.questions import KINDS, Asked, Words, is_asked

Check = Callable[[Asked], str | None]
"""Empty: the rule holds. A sentence: it does not. None: the question says nothing of it."""
SAME = 1e-9
"""Rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One sentence, and the function that checks it on a question of its kind."""

    name: str
    kinds: tuple[str, ...]
    sentence: str
    check: Check


RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Check], Check]:
    """Declare a rule of these kinds of question; its docstring is its sentence."""

    def declared(check: Check) -> Check:
        sentence = (check.__doc__ or "").strip()
        assert sentence.endswith("."), f"{check.__name__}: a sentence"
        assert "\n" not in sentence, f"{check.__name__}: on one line"
        assert check.__name__ not in RULES, check.__name__
        RULES[check.__name__] = Rule(name=check.__name__, kinds=kinds, sentence=sentence, check=check)
        return check

    return declared


def rules_of(kind: str) -> list[Rule]:
    return [one for one in RULES.values() if kind in one.kinds]


ANSWERED = "every_question_is_answered_or_refused"


@rule(*KINDS)
def every_question_is_answered_or_refused(asked: Asked) -> str | None:
    """Every question is answered, or refused in one sentence: none ends in another exception."""
    return asked.fault and f"ends in {asked.fault.splitlines()[-1]} at {asked.fault.splitlines()[-3].strip()}"


# What rules compare with.


def never_above(first: float, second: float, words: str, *, slack: float = SAME) -> str:
    """Holds where `first` is at most `second`, but for a share `slack` of it."""
    if first <= second + slack * abs(second):
        return ""
    return f"{words}: {first:.6g} > {second:.6g} ({first / second - 1:+.2%})" if second else f"{words}: {first:.6g} > 0"


def equal(first: float, second: float, words: str, *, slack: float = SAME) -> str:
    if math.isclose(first, second, rel_tol=slack, abs_tol=1e-12):
        return ""
    return f"{words}: {first:.9g} and {second:.9g}"


def first_of(*checks: str) -> str:
    """The first sentence of several checks; empty where all hold."""
    return next((one for one in checks if one), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A question that breaks a rule, as small as it was made."""

    rule: str
    asked: Asked
    said: str

    @property
    def line(self) -> str:
        """One line of `found.jsonl`."""
        return json.dumps(
            {"rule": self.rule, "kind": self.asked.kind, "seed": self.asked.seed, "words": self.asked.words}
        )

    def __str__(self) -> str:
        return f"question {self.asked.seed}: {self.said}\n      {self.asked.text}"


def counterexample(line: str) -> tuple[Rule, Asked]:
    """The rule and the question of a line of `found.jsonl`."""
    one = json.loads(line)
    return RULES[one["rule"]], Asked(kind=one["kind"], words=one["words"], seed=one["seed"])


@dataclass(slots=True)
class Counts:
    """What came of one rule."""

    asked: int = 0
    checked: int = 0
    violated: int = 0
    examples: list[Counterexample] = field(default_factory=list)

    def add(self, other: Counts, most_examples: int = 5) -> None:
        self.asked += other.asked
        self.checked += other.checked
        self.violated += other.violated
        self.examples = (self.examples + other.examples)[:most_examples]


def verdict(one: Rule, asked: Asked) -> str | None:
    """What the rule says of a question. A variant that is refused says nothing; any other exception is a fault."""
    try:
        return one.check(asked.drawn_for(one.name))
    except ScalewrightError:
        return None
    except Exception:
        return f"ends in {traceback.format_exc().splitlines()[-1]} at {traceback.format_exc().splitlines()[-3].strip()}"


def chosen_rules(asked: Asked) -> list[Rule]:
    """Some of the rules of the question's kind, in turn, so that all are asked equally often."""
    rules, num = rules_of(asked.kind), KINDS[asked.kind].num_rules
    first = asked.seed * num
    return [rules[(first + i) % len(rules)] for i in range(min(num, len(rules)))]


def check_all(questions: Iterator[Asked], *, only: tuple[str, ...] = (), most_examples: int = 5) -> dict[str, Counts]:
    """Ask every question its rules, or those in `only`."""
    counts: dict[str, Counts] = defaultdict(Counts)
    for asked in questions:
        rules = [one for one in rules_of(asked.kind) if one.name in only] if only else chosen_rules(asked)
        if asked.fault:
            rules = [RULES[ANSWERED]]
        for one in rules:
            count, said = counts[one.name], verdict(one, asked)
            count.asked += 1
            count.checked += said is not None
            if said:
                count.violated += 1
                if len(count.examples) < most_examples:
                    small, what = shrunk(one, asked, said)
                    count.examples.append(Counterexample(rule=one.name, asked=small, said=what))
    return dict(counts)


PLAIN: Words = {
    "network": None, "transport": None, "partition": None, "stack": None, "precision": None, "optimizer": None,
    "mode": None, "storage": None, "samples": None, "num_loaders": None, "seq": None, "objective": None, "fix": None,
}  # fmt: skip
SIMPLE = {
    "model": ("gpt2", "llama2-7b", "mixtral-8x7b", "resnet-50"),
    "system": ("generic-h100", "generic-a100", "leonardo"),
}
MOST_TRIES = 60


def shrunk(one: Rule, asked: Asked, said: str) -> tuple[Asked, str]:
    """A simpler question that breaks the rule as well: fewer words, plainer ones, smaller numbers."""
    tries, found = 0, True
    while found and tries < MOST_TRIES:
        found = False
        for words in _simpler(asked.words):
            tries += 1
            if tries > MOST_TRIES:
                break
            other = Asked(kind=asked.kind, words=words, seed=asked.seed)
            what = verdict(one, other) if is_asked(other) else None
            if what:
                asked, said, found = other, what, True
                break
    return asked, said


def _simpler(words: Words) -> Iterator[Words]:
    for name in PLAIN:
        if name in words:
            yield {k: v for k, v in words.items() if k != name}
    for name, values in SIMPLE.items():
        for value in values:
            if words.get(name) == value:
                break
            if name in words:
                yield {**words, name: value}
    for group in ("generate", "rl"):
        for name in words.get(group, {}):
            if name not in ("prompt", "response", "prompts", "samples"):
                yield {**words, group: {k: v for k, v in words[group].items() if k != name}}
    knobs: dict[str, Any] = words.get("layout", {})
    for name, plain in (
        ("vpp", 1),
        ("ep", 1),
        ("cp", 1),
        ("sp", 0),
        ("recompute", "none"),
        ("zero", 0),
        ("pp", 1),
        ("tp", 1),
    ):
        if name in knobs and knobs[name] != plain:
            yield {**words, "layout": {**knobs, name: plain}}
    if isinstance(knobs.get("dp"), int) and knobs["dp"] > 1 and knobs.get("gbs", 0) % 2 == 0 and knobs["dp"] % 2 == 0:
        yield {**words, "layout": {**knobs, "dp": knobs["dp"] // 2, "gbs": knobs["gbs"] // 2}}
    share = knobs.get("dp", 1) * knobs.get("mbs", 1)
    if knobs.get("gbs", 0) > share and knobs.get("gbs", 0) % (2 * share) == 0:
        yield {**words, "layout": {**knobs, "gbs": knobs["gbs"] // 2}}
