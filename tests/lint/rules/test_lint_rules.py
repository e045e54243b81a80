"""Every rule fires where it should, is silent elsewhere, and its fixes satisfy it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scalewright.lint.engine import Linter, LintFinding, known_rules
from scalewright.lint.fixes import fix_script
from scalewright.lint.rule import Context
from scalewright.lint.rules import CATEGORIES, all_rules
from scalewright.lint.script import Script, parse_script
from scalewright.lint.settings import LintSettings

sys.path.insert(0, str(Path(__file__).parent))  # the cases beside this file
import lint_cases_blind
import lint_cases_fresh
import lint_cases_header
import lint_cases_nested
import lint_cases_ranks
import lint_cases_rest
import lint_cases_runs
from lint_cases import Case, Cases

CASES: dict[str, Cases] = {
    **lint_cases_header.CASES,
    **lint_cases_ranks.CASES,
    **lint_cases_runs.CASES,
    **lint_cases_rest.CASES,
    **lint_cases_nested.CASES,
    **lint_cases_fresh.CASES,
    **lint_cases_blind.CASES,
}
for _rule, _more in (*lint_cases_fresh.MORE.items(), *lint_cases_blind.MORE.items()):
    _cases = CASES[_rule]
    CASES[_rule] = replace(_cases, fires=_cases.fires + _more.fires, silent=_cases.silent + _more.silent)
RULES = all_rules()


def of_rule(rule: str, case: Case, context: Context) -> tuple[Script, Linter]:
    """A script, and a linter with one rule."""
    text, case_context = case if isinstance(case, tuple) else (case, context)
    linter = Linter(
        settings=LintSettings(select=(rule,)), context=case_context, needs_of=lambda script: case_context.needs
    )
    return parse_script(text), linter


def findings_of(rule: str, case: Case, context: Context) -> list[LintFinding]:
    script, linter = of_rule(rule, case, context)
    return [finding for finding in linter.lint(script) if finding.rule == rule]


def all_cases(kind: str) -> list[object]:
    return [
        pytest.param(rule, case, cases.context, id=f"{rule}-{number}")
        for rule, cases in CASES.items()
        for number, case in enumerate(getattr(cases, kind))
    ]


def test_every_rule_has_a_category_and_every_category_rules() -> None:
    assert {rule.category for rule in known_rules().values()} == set(CATEGORIES)


def test_every_rule_has_cases() -> None:
    assert set(CASES) == set(RULES)
    assert all(len(cases.fires) >= 2 and len(cases.silent) >= 2 for cases in CASES.values())


@pytest.mark.parametrize(("rule", "case", "context"), all_cases("fires"))
def test_a_rule_fires(rule: str, case: Case, context: Context) -> None:
    findings = findings_of(rule, case, context)
    assert findings
    script, _ = of_rule(rule, case, context)
    for finding in findings:
        assert 1 <= finding.line <= len(script.lines)
        assert finding.message
        assert finding.next_step
        assert "\n" not in finding.message + finding.next_step


@pytest.mark.parametrize(("rule", "case", "context"), all_cases("silent"))
def test_a_rule_stays_silent(rule: str, case: Case, context: Context) -> None:
    assert [finding.message for finding in findings_of(rule, case, context)] == []


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_example_of_a_rule_is_one(rule: str) -> None:
    context = CASES[rule].context
    assert findings_of(rule, RULES[rule].before, context)
    assert [finding.message for finding in findings_of(rule, RULES[rule].after, context)] == []


def fixed(rule: str, case: Case, context: Context) -> tuple[Script, list[LintFinding]] | None:
    """The script after the rule's own fixes, and what the rule then finds; None: it offers none."""
    script, linter = of_rule(rule, case, context)
    if not any(finding.fix for finding in linter.lint(script)):
        return None
    result = fix_script(script, linter, parse_script, unsafe=True)
    assert result.applied, "a fix that is offered and never applied"
    return parse_script(result.text), [finding for finding in result.open_findings if finding.rule == rule]


@pytest.mark.parametrize(("rule", "case", "context"), all_cases("fires"))
def test_fixes_satisfy_their_rule_and_change_nothing_twice(rule: str, case: Case, context: Context) -> None:
    result = fixed(rule, case, context)
    if result is None:
        return
    script, left = result
    assert [finding.message for finding in left if finding.fix] == []
    text = script.text
    again, _ = of_rule(rule, (text, case[1] if isinstance(case, tuple) else context), context)
    linter = of_rule(rule, case, context)[1]
    assert fix_script(again, linter, parse_script, unsafe=True).text == text
    kept = [
        c.text for c in of_rule(rule, case, context)[0].comments if c.text.startswith("# ") and "SBATCH" not in c.text
    ]
    assert all(comment.rstrip("\r") in text for comment in kept)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_example_of_a_rule_is_fixed(rule: str) -> None:
    result = fixed(rule, RULES[rule].before, CASES[rule].context)
    if result is not None:
        assert [finding.message for finding in result[1]] == []


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_needs_nothing_but_a_script(rule: str) -> None:
    cases = CASES[rule]
    for case in (*cases.fires, *cases.silent):
        text = case[0] if isinstance(case, tuple) else case
        for hit in RULES[rule].check(parse_script(text), Context()):
            assert hit.message


def test_a_rule_explains_itself() -> None:
    for rule in RULES.values():
        assert rule.id == rule.id.lower()
        assert rule.title
        assert len(rule.why) > 40
        assert len(rule.source) > 10
        assert rule.before != rule.after
