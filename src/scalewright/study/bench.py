"""A single benchmark: one point of a kind, without a study around it, in a run directory of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scalewright.catalog.library import Catalog
from scalewright.launch.ranks.external import num_ranks_here
from scalewright.records.run_directory import RunDirectory, new_run_id
from scalewright.study.execute import execution_of
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value

ROOM_FOR_REASON_BYTES = 2**16
"""With less room than this on its disk, a run may have failed to write down why it ended."""


def benchmark(
    catalog: Catalog, kind: str, options: Mapping[str, Value | None], *, run_dir: Path | None, command: str = ""
) -> Execution:
    """The run of one benchmark. Options that are None take the kind's default."""
    num_ranks_here(
        os.environ, requested_ranks=None, has_run_dir=run_dir is not None
    )  # several ranks must agree on a folder
    given = {name: value for name, value in options.items() if value is not None}
    command = command or f"bench {kind}"
    name = command.removeprefix("bench ")
    new_path = Path("runs") / new_run_id(name)
    execution = execution_of(catalog, kind, given, path=run_dir or new_path, where=command)
    # The files of an engine's job name its folder.
    if run_dir is None and "model_id" in execution.config and execution.engine_job is None:
        execution = replace(execution, path=Path("runs") / new_run_id(f"{name}-{execution.config['model_id']}"))
    return replace(execution, script=repeat_script(execution.path))


def repeat_script(path: Path) -> str:
    """A shell script with the command that repeats or resumes this run."""
    words = sys.argv[1:]
    has_run_dir = any(word == "--run-dir" or word.startswith("--run-dir=") for word in words)
    command = ["scalewright", *words, *([] if has_run_dir else ["--run-dir", str(path)])]
    return f"#!/bin/sh\ncd {shlex.quote(str(Path.cwd()))} || exit 2\nexec {shlex.join(command)}\n"


def end_reason(directory: RunDirectory) -> str:
    """Why a run ended: as it wrote down, or else as a rank's log or a full disk tells."""
    info = directory.read_exit_info()
    if info is not None:
        return info.reason
    for path in sorted(directory.logs.glob("rank-*.log")):
        errors = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
    if shutil.disk_usage(directory.path).free < ROOM_FOR_REASON_BYTES:
        return "No space left on device: free space, then run it again to resume; earlier checkpoints are untouched"
    return "the run left no reason: see logs/"
