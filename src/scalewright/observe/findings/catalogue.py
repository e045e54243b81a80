"""All rules of findings: every theme is a module, and is imported here."""

from __future__ import annotations

from scalewright.observe.findings import (  # noqa: F401
    batch,
    checkpoints,
    clocks,
    communication,
    data_loading,
    host,
    jobs,
    memory,
    pipeline,
    precision,
    reported,
    rl,
    steps,
    stragglers,
    traces,
    transport,
)
from scalewright.observe.findings.ends import (  # noqa: F401
    inputs,
    loss,
    network,
    out_of_memory,
    rank_ends,
    scheduler_ends,
    starts,
)
from scalewright.observe.findings.rule import RULES, FindingRule


def every_rule() -> list[FindingRule]:
    """By theme, then by id."""
    return sorted(RULES.values(), key=lambda rule: (rule.theme, rule.id))
