"""Cases of lint rules: scripts on which a rule fires, and scripts on which it is silent."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.lint.rule import Context, ModelNeeds
from scalewright.sites.loader import find_site

LUMI, LEONARDO, DEUCALION, JUPITER, PERLMUTTER, KAROLINA, FRONTIER, MARENOSTRUM = (
    Context(site=find_site(name))
    for name in ("lumi", "leonardo", "deucalion", "jupiter", "perlmutter", "karolina", "frontier", "marenostrum5")
)
GENERIC = Context(site=find_site("generic"))
PILOT = Context(pilot_s=7200.0)
PLAN = Context(
    needs=ModelNeeds(
        model="llama3-70b", num_gpus=32, device_bytes=4e10, host_bytes_per_node=2e11, tp=4, pp=1, is_planned=True
    )
)
FEWEST = Context(
    needs=ModelNeeds(model="llama3-70b", num_gpus=32, device_bytes=4e10, host_bytes_per_node=0.0, tp=4, pp=1)
)
OLD_SLURM = Context(slurm=(22, 5))
NOTHING = Context()

Case = str | tuple[str, Context]
"""A script, with its context if that is not the usual one of the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Scripts on which a rule fires, and scripts on which it is silent."""

    fires: tuple[Case, ...]
    silent: tuple[Case, ...]
    context: Context = NOTHING
    """Usual context, also for the example of the rule."""


def job(options: str, body: str = "srun python train.py") -> str:
    """A script with all its options on one line of the header."""
    header = "".join(f"#SBATCH {line}\n" for line in options.splitlines())
    return f"#!/bin/bash\n{header}{body}\n"


def shell(body: str) -> str:
    """A script without a header."""
    return f"#!/bin/bash\n{body}\n"
