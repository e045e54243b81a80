"""A run directory written as a run would write it, with numbers that are easy to check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scalewright.records import metric_names as names
from scalewright.records.documents import document, write_document
from scalewright.records.events import EventLine, EventWriter
from scalewright.records.run_directory import ExitInfo, RunDirectory

START_S = 1_800_000_000.0  # a whole minute
CONFIG = document(
    "language-run", {"model_id": "gpt2-tiny", "precision": "fp32", "layout": "dp=2,mbs=1,gbs=2", "steps": 20}
)
PREDICTION = document(
    "prediction",
    {
        "num_gpus": 2,
        "step_time_s": 0.8,
        "step_time_interval_s": [0.5, 2.0],
        "tokens_per_s_per_gpu": 125.0,
        "mfu_frac": 0.5,
        "model_flop": 1.6e9,
        "memory_bytes": 1e8,
        "confidence": "model",
    },
)
SPLIT = {names.COMPUTE_TIME: 0.6, names.COMMUNICATION_TIME: 0.2, names.DATA_WAIT: 0.05, names.IDLE_TIME: 0.15}


def make_run(
    path: Path, *, num_steps: int = 20, first_step: int = 1, step_s: float = 1.0, attempt: int = 0
) -> RunDirectory:
    """Two ranks whose steps take 1.0 and 1.0 s, after three slow ones; steps 10 and 11 are profiled."""
    directory = RunDirectory.create_or_resume(path, CONFIG)
    if not directory.prediction.exists():
        write_document(directory.prediction, PREDICTION)
    job = f"job{attempt}"
    for rank in (0, 1):
        line, writer = EventLine(job=job, rank=rank, host="n1"), EventWriter(directory.rank_events(rank))
        for step in range(first_step, num_steps + 1):
            seconds = 9.0 if step <= 3 else step_s
            values: Mapping[str, float] = {
                names.STEP_TIME: seconds,
                names.LOSS: 6.0 - 0.1 * step,
                names.TOKENS_PER_S: 256.0 / seconds,
                names.FLOP_PER_S: 1e9 / seconds,
                names.MFU: 0.4,
                names.PEAK_MEMORY: 1e8 + rank * 1e7,
                **(SPLIT if step in (10, 11) else {}),
            }
            time_s = START_S + 60.0 * attempt + step
            writer.append(
                "".join(
                    line.format(time_s=time_s, step=step, name=name, value=value, unit=names.UNITS[name])
                    for name, value in values.items()
                )
            )
        writer.close()
    node_line, node = EventLine(job=job, rank=-1, host="n1"), EventWriter(directory.node_events("n1"))
    for second in range(0, num_steps + 1, 2):
        for name, value, of in (
            (names.GPU_ENERGY, 1000.0 + 100.0 * second, "gpu0"),
            (names.GPU_POWER, 80.0 if second < 4 else 100.0, "gpu0"),
            (names.CPU_ENERGY, 50.0 + 28.0 * second, "package-0"),
            (names.NETWORK_RECEIVED, 5e6 * second, "mlx5_0/1"),
            (names.SAMPLER_CPU_TIME, 0.001 * second, ""),
        ):
            node.append(
                node_line.format(
                    time_s=START_S + 60.0 * attempt + second,
                    step=-1,
                    name=name,
                    value=value,
                    unit=names.UNITS[name],
                    detail=of,
                )
            )
    node.close()
    directory.write_exit_info(
        ExitInfo(code=0, reason="finished", job=job, attempt=0, rank=0, last_checkpoint=None, time=START_S)
    )
    return directory
