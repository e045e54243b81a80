"""What a finding's rule consists of: a documented check of evidence that yields what it saw.

@finding_rule(id="communication-bound", severity="warning", title="...", why="...", advice="...", source="...")
def communication_bound(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    ...
    yield Seen(message="...", spots=(spot,), numbers={"exposed_frac": 0.4}, next_step="...", score=0.4, gain=...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Spot
from scalewright.records.types import Rule, Severity

Role = Literal["ended", "slowed", "wasted", "suspect"]
"""What the cause did: ended the run, made it slower, wasted what was reserved, or makes its numbers doubtful."""
Certainty = Literal["certain", "likely", "possible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What removing the cause should give: how the figure was made, so that a user can repeat it."""

    step_time_frac: float
    """Share of the step's (or the run's) time that would be saved, 0 to 1."""
    how: str
    """In words: measured time of the others, the planner's prediction, ..."""
    command: str = ""
    """A `scalewright predict ... --what-if ...` that gives the same, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingContext:
    """What a check knows beside the evidence."""

    ended: bool = True
    """False: the run still goes on, so that an end that is missing says nothing."""
    now_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One time that a rule fired."""

    message: str
    """What is the case, with its numbers: one sentence."""
    spots: tuple[Spot, ...]
    """Where it can be read; never empty."""
    next_step: str
    """What to change, as a command or a setting."""
    certainty: Certainty = "likely"
    score: float = 0.0
    """Orders findings of one role: the share of time lost, or 1 for what ended the run first."""
    numbers: Mapping[str, float | str] = field(default_factory=dict)
    gain: Gain | None = None
    severity: Severity | None = None
    """None: the rule's."""
    ranks: tuple[int, ...] = ()


RUN_OPTIONS = {
    "bench language": ("--checkpoint", "--checkpoint-every", "--precision", "--profile"),
    "bench vision": ("--checkpoint", "--checkpoint-every", "--precision", "--profile"),
    "reason sft": ("--checkpoint-every", "--precision"),
    "reason grpo": ("--checkpoint-every", "--precision", "--token-budget"),
    "reason distill": ("--checkpoint-every", "--precision"),
}
"""Options that findings name, by the commands that have them. tests/cli/test_advised_flags.py asks the commands."""


def run_option(evidence: Evidence, option: str, value: str = "") -> str:
    """An option as the command of the run takes it; empty where it has none such, or the run is not ours."""
    kind, stage = (evidence.settings.get(name, ("",))[0] for name in ("kind", "stage"))
    command = f"reason {stage}" if kind == "reason" else f"bench {kind}"
    return f"{option} {value}".rstrip() if option in RUN_OPTIONS.get(command, ()) else ""


Check = Callable[[Evidence, FindingContext], Iterator[Seen]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRule(Rule):
    """A rule with its check and the content of its page."""

    check: Check
    role: Role
    advice: str
    """What helps, in general; the page shows it."""
    because_of: tuple[str, ...] = ()
    """Rules whose cause brings this one about: if one of them fired, this is its consequence."""
    theme: str = ""
    """Module of the rule below this folder, and folder of its page."""

    @property
    def page(self) -> str:
        return f"docs/findings/{self.theme}/{self.id}.md"


RULES: dict[str, FindingRule] = {}


def finding_rule(
    *, id: str, severity: Severity, role: Role, title: str, why: str, advice: str, source: str,
    because_of: tuple[str, ...] = (),
) -> Callable[[Check], Check]:  # fmt: skip
    """Register a check under its id."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise ValueError(f"two rules are called {id}")
        RULES[id] = FindingRule(
            id=id, severity=severity, role=role, title=title, why=why, advice=advice, source=source, check=check,
            because_of=because_of, theme=check.__module__.partition(".findings.")[2].replace(".", "/"),
        )  # fmt: skip
        return check

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A finding as it is shown: a rule and what it saw."""

    rule: FindingRule
    seen: Seen
    because_of: str = ""
    """The rule whose finding explains this one; empty: it stands for itself."""

    @property
    def severity(self) -> Severity:
        """A consequence is a note: its cause has the severity."""
        return "info" if self.because_of else self.seen.severity or self.rule.severity
