"""The rules of sense hold over random questions: a thousand that are the same each time, and all that broke one before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sense.questions import KINDS, Asked, questions
from sense.rules import RULES, Counterexample, check_all, chosen_rules, counterexample, rule, rules_of, verdict
from sense.sense_soak import PAGE, RESULTS, SEED_STRIDE, page

SEED = int(os.environ.get("SCALEWRIGHT_TEST_SEED", "0"))
NUM_QUESTIONS, NUM_PARTS = 1000, 20
FOUND = (Path(__file__).parent / "found.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.drawn
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_the_rules_hold_over_random_questions(part: int) -> None:
    each = NUM_QUESTIONS // NUM_PARTS
    counts = check_all(questions(SEED * SEED_STRIDE + part * each, each))
    broken: list[Counterexample] = [example for one in counts.values() for example in one.examples]
    assert not broken, "\n".join(f"{RULES[one.rule].sentence}\n  {one}" for one in broken)


@pytest.mark.parametrize("line", FOUND, ids=lambda line: json.loads(line)["rule"])
def test_what_once_broke_a_rule_keeps_it(line: str) -> None:
    one, asked = counterexample(line)
    assert not verdict(one, asked), f"{one.sentence}\n  {verdict(one, asked)}\n  {asked.text}"


def test_there_are_rules_of_every_kind_and_each_is_asked() -> None:
    assert len(RULES) >= 60
    for kind in KINDS:
        asked_in_turn = {one.name for seed in range(100) for one in chosen_rules(Asked(kind=kind, words={}, seed=seed))}
        assert asked_in_turn == {one.name for one in rules_of(kind)}, kind


def test_the_page_lists_the_rules_with_their_counts() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_a_broken_rule_is_found_and_its_question_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sense.rules.RULES", {})

    @rule("vision")
    def nothing_ever_takes_time(asked: Asked) -> str | None:
        """Nothing ever takes time."""
        return "it does" if asked.answer.time_s > 0 else ""

    counts = check_all(questions(1, 1, ("vision",)))["nothing_ever_takes_time"]
    assert (counts.asked, counts.checked, counts.violated) == (1, 1, 1)
    assert counts.examples[0].said == "it does"
    assert set(counts.examples[0].asked.words) == {"model", "system", "layout"}
