"""The rules, grouped by category: each folder or module in this folder is one category.

To add a rule:

1. Choose the category that fits (`CATEGORIES` below) and open its module, such as `network.py` or `ranks/counts.py`.
2. Write a function `my_rule(script, context)` that yields a `Hit` where the script is wrong: `at(...)` marks a command,
   a word or a directive, `at_header(...)` says what the header lacks. `lint/script.py` lists what a script offers,
   `lint/job_facts.py` what several rules need.
3. Put `@rule(id="my-rule", severity=..., title=..., why=..., source=..., before=..., after=...)` above it. The rule
   must fire on `before` and not on `after`; the tests check both. Nothing is registered: `all_rules` finds the rule.
4. Add scripts on which it fires and on which it stays silent to `tests/lint/rules/lint_cases_*.py`.
5. Run `python -m pytest tests/lint`, then `python tools/generate_docs.py`, which writes the rule's page.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from scalewright.lint.rule import LintRule

CATEGORIES = {
    "header": "Whether sbatch reads the #SBATCH lines and their values as they are meant",
    "resources": "What the job requests: time, memory, CPUs, GPUs, and whether the model fits",
    "site": "Limits and demands of the cluster, from its profile (needs --site)",
    "arrays": "Job arrays: size, logs, and the work that each task picks",
    "ranks": "How ranks are started: torchrun and other launchers, process counts, rank numbers, Ray",
    "steps": "What srun passes to its tasks: CPUs, binding, environment, exit codes",
    "network": "How ranks meet and communicate: ports, addresses, NCCL settings",
    "environment": "Software in the job: secrets, installations, modules, conda, containers",
    "signals": "The end of a job: signals, traps, requeueing, exit codes",
    "files": "Logs, checkpoints, shared paths and node-local folders",
    "scheduler": "Load on the scheduler: submission loops, polling, dependencies",
    "shell_text": "Shell text that does not do what it seems to do",
    "suppressions": "Comments that switch rules off",
}
"""What each category covers, in the order of the documentation."""


@cache
def all_rules() -> dict[str, LintRule]:
    """Rules by id, in the order of their ids."""
    rules: dict[str, LintRule] = {}
    for info in pkgutil.walk_packages(__path__, f"{__name__}."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if isinstance(value, LintRule) and rules.setdefault(value.id, value) is not value:
                raise AssertionError(f"two rules are called {value.id}")
    return dict(sorted(rules.items()))
