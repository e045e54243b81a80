"""The tasks of a pipeline by phase and number: pure functions of files in the work folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from scalewright.data.text.duplicates.key_tables import DropCodes
from scalewright.data.text.duplicates.span_anchors import SPANS, span_task
from scalewright.data.text.duplicates.span_cuts import CUTS, cut_task
from scalewright.data.text.duplicates.tasks import (
    EXACT,
    NEAR,
    URL,
    VERIFY,
    group_task,
    kinds_of,
    mark_drops,
    offsets_of,
    verify_task,
)
from scalewright.data.text.execution.backend import Summary
from scalewright.data.text.execution.clean_task import CLEAN, clean_chunk
from scalewright.data.text.execution.job import read_job
from scalewright.data.text.execution.work_files import TaskFiles
from scalewright.data.text.tokens.finish_task import FINISH, finish_chunk
from scalewright.data.text.writing.shard_task import SHARD, write_shard
from scalewright.records.documents import parse_json, read_text, write_text

MARK = "mark-"
"""Before the name of a kind of duplicates: the one task that writes its marks."""
PLAN = "plan.json"


def write_phase_plan(work: Path, phase: str, plan: dict[str, Any]) -> None:
    """What the tasks of a phase need to know beside the job."""
    TaskFiles(work, phase).make()
    write_text(work / phase / PLAN, json.dumps(plan), is_synced=False)


def read_phase_plan(work: Path, phase: str) -> dict[str, Any]:
    path = work / phase / PLAN
    plan: dict[str, Any] = parse_json(read_text(path), where=str(path))
    return plan


def run_task(work: Path, phase: str, number: int) -> Summary:
    """Do one task and write its summary; a task that is done already only returns it."""
    files = TaskFiles(work, phase)
    if files.is_done(number):
        return files.summary(number)
    began_s = time.process_time()
    summary = _done(work, phase, number)
    summary["task_cpu_s"] = time.process_time() - began_s
    files.write_summary(number, summary)
    return summary


def _done(work: Path, phase: str, number: int) -> Summary:
    plan = read_phase_plan(work, phase)
    match phase:
        case "clean":
            return clean_chunk(work, number)
        case "exact" | "url" | "near":
            return group_task(work, phase, number)
        case "verify":
            num_near_tasks, num_tasks = plan["num_near_tasks"], plan["num_tasks"]
            return verify_task(work, number, num_near_tasks=num_near_tasks, num_tasks=num_tasks)
        case "spans":
            return _span_task(work, number, plan)
        case "cuts":
            return _cut_task(work, number, plan)
        case "finish":
            return finish_chunk(work, number, num_shards=plan["num_shards"])
        case "write":
            return write_shard(work, number)
    kind = phase.removeprefix(MARK)
    return mark_drops(work, kind, num_tasks=plan["num_group_tasks"], num_verify=plan["num_verify"])


def _span_task(work: Path, number: int, plan: dict[str, Any]) -> Summary:
    job = read_job(work)
    kinds = kinds_of(job.pipeline.deduplicate)
    dropped = DropCodes(work / f"drops-{kinds[-1]}.npy", offsets_of(work)) if kinds else None
    return span_task(work, number, num_tasks=plan["num_tasks"], num_chunks=len(job.chunks), dropped=dropped)


def _cut_task(work: Path, number: int, plan: dict[str, Any]) -> Summary:
    step = read_job(work).pipeline.deduplicate
    assert step is not None
    return cut_task(work, number, num_span_tasks=plan["num_span_tasks"], least=step.spans, unit=step.span_unit)


PHASES = (
    CLEAN, EXACT, f"{MARK}{EXACT}", URL, f"{MARK}{URL}", NEAR, VERIFY, f"{MARK}{NEAR}", SPANS, CUTS, FINISH, SHARD,
)  # fmt: skip
"""In the order in which they run; a pipeline leaves out those of steps that it does not have."""
