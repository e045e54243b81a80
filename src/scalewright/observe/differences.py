"""What differs between two runs, and which terms of a step each difference can change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from scalewright.observe.evidence.evidence import Evidence
from scalewright.records.redaction import visible_variables

Topic = Literal["setting", "variable", "version", "placement", "condition"]
ALL_TERMS = (
    "compute", "communication", "data", "idle", "checkpoint", "validation", "optimizer", "generation", "reward",
    "training", "weight_sync",
)  # fmt: skip
NOTHING = "not set"
MOST_VALUE = 80

_ALWAYS_DIFFER = re.compile(
    r"^(measured\..*|num_attempts|took_s|run_?id|steps|num_steps|checkpoint_dir|basis|seed|last_checkpoint|log_dir|peak_.*"
    r"|MASTER_(ADDR|PORT)|SCALEWRIGHT_(JOB|RUN_DIR)|RANK|LOCAL_RANK|PMI\w*|TMPDIR|PYTHONPATH|VIRTUAL_ENV|PWD|.*_PID"
    r"|SLURM\w*(ID|IDS|PID|COMM_PORT|COMM_HOST|NODELIST|NODENAME|STEP\w*|SUBMIT\w*|ADDR\w*|NAME|COOKIE|HOST|TIME|RESV\w*"
    r"|LAUNCH\w*|SRUN\w*|CONF|PROCID|UID|USER|GID|CLUSTER\w*|END\w*|START\w*|WORKING\w*|PRIO\w*))$"
)
"""Names that differ between any two runs and say nothing."""
_TERMS_OF: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), terms)
    for pattern, terms in (
        (r"^num_workers$|loader|prefetch|^data$|data_|dataset|copy_to|storage", ("data",)),
        (r"^checkpoint_(every|async)|save_", ("checkpoint",)),
        (r"^(NCCL|RCCL|GLOO|UCX|FI|MPICH|OMPI)_|^nvidia-nccl|^nccl|^rccl|^overlap$|bucket", ("communication",)),
        (r"^transport|^network|^channels", ("communication",)),
        (r"^(others_cores|num_throttles|clock|power)", ("compute", "communication", "data", "idle")),
        (r"^(OMP|MKL|KMP|ONEDNN)_|^num_threads$|^SLURM_CPUS|cpu_bind|binding", ("compute", "data")),
        (r"^(recompute|attention|compile|precision|accelerator|device)$|^torch$|^triton|^driver|cudnn|^PYTORCH_|^TORCH",
         ("compute", "idle")),
        (r"^offload$", ("idle", "optimizer", "communication")),
        (r"^(tp|pp|cp|ep|dp|vpp|zero|layout|num_ranks|num_nodes|gpus_per_node|sp)$|^WORLD_SIZE|^LOCAL_WORLD_SIZE",
         ("communication", "idle", "compute")),
        (r"^nodes$", ("communication", "compute")),
    )
)  # fmt: skip
_SAME = re.compile(r"^\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*$")
LEAST_CONDITION = 0.25
"""Conditions such as the load of others differ a little between any two runs."""
_CONDITIONS = {"others_cores": "cores that other programs used", "num_throttles": "times that clocks were throttled"}
LONGEST_NUMBER = 8
"""Digits of a number beyond these are noise of a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """One thing that is not the same in both runs."""

    topic: Topic
    name: str
    first: str
    second: str
    terms: tuple[str, ...]
    """Terms of a step that it can change."""

    @property
    def words(self) -> str:
        if self.topic == "condition":
            return f"{_CONDITIONS[self.name]}: {self.second} instead of {self.first}"
        return f"{self.topic} {self.name} is {self.second} instead of {self.first}"


def differences(first: Evidence, second: Evidence) -> list[RunDifference]:
    """Everything that differs and can matter, in order of topic and name."""
    changed = [
        *_of_maps("setting", _settings(first), _settings(second)),
        *_of_maps("variable", visible_variables(first.environment), visible_variables(second.environment)),
        *_of_maps("version", first.versions, second.versions),
        *_of_maps("placement", _placement(first), _placement(second)),
    ]
    names = {one.name for one in changed}
    return [one for one in changed if not (one.name == "layout" and names & {"tp", "pp", "dp", "mbs", "gbs", "zero"})]


def _settings(evidence: Evidence) -> dict[str, str]:
    return {name: value for name, (value, _) in evidence.settings.items()}


def _of_maps(topic: Topic, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[RunDifference]:
    if not first or not second:
        return  # nothing was read of one of them: that is no difference
    for name in sorted(set(first) | set(second)):
        a, b = first.get(name, NOTHING), second.get(name, NOTHING)
        if _ALWAYS_DIFFER.match(name) or _is_same(a, b, is_condition=name in _CONDITIONS):
            continue
        if topic == "setting" and NOTHING in (a, b) and name not in _CONDITIONS:
            continue  # programs log different settings; a missing one is no difference
        yield RunDifference(
            topic="condition" if name in _CONDITIONS else topic, name=name, first=_short(a), second=_short(b),
            terms=_terms(name),
        )  # fmt: skip


def _is_same(a: str, b: str, *, is_condition: bool) -> bool:
    if a == b:
        return True
    numbers = [float(match.group(1)) for match in (_SAME.match(a), _SAME.match(b)) if match]
    if len(numbers) != 2:
        return False
    return abs(numbers[0] - numbers[1]) < LEAST_CONDITION if is_condition else numbers[0] == numbers[1]


def _terms(name: str) -> tuple[str, ...]:
    return next((terms for pattern, terms in _TERMS_OF if pattern.search(name)), ALL_TERMS)


def _short(value: str) -> str:
    text = " ".join(value.split())
    if len(text) > LONGEST_NUMBER and "." in text and _SAME.match(text):
        return f"{float(text):.3g}"
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 3]}..."


def _placement(evidence: Evidence) -> dict[str, str]:
    """Where it ran, and how ranks reached each other."""
    nodes = sorted({node for job in evidence.jobs for node in job.nodes})
    hosts = sorted({one.host for one in evidence.happenings if one.host} | set(nodes))
    placement = {"nodes": ", ".join(hosts)} if hosts else {}
    for between in ("nodes", "node"):
        routes = sorted({
            f"{one.way}{' with GDR' if one.is_direct else ''}"
            for one in evidence.transports if one.between == between
        })  # fmt: skip
        if routes:
            placement[f"transport between {'nodes' if between == 'nodes' else 'devices'}"] = ", ".join(routes)
    return placement
