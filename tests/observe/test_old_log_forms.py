"""Forms of logs that releases and forks had: other separators, names and spaces, as seen in public repositories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalewright.observe.findings.order import explain
from scalewright.observe.findings.rule import FindingContext
from scalewright.observe.readers.reading import read_evidence


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            " iteration      100/  500000 | elapsed time per iteration (ms): 433.5 | learning rate 1.500E-05 | "
            "lm loss 9.912345E+00 | loss scale 65536.0 |",
            {"step": 100, "time_s": 0.4335, "loss": 9.912345, "learning_rate": 1.5e-05},
        ),
        (
            " iteration      200/infinity | consumed samples:  1600 | elapsed time per iteration (ms): 431.0 | "
            "learning rate: 1.342E-04 | global batch size:     4 | lm loss: 7.2E+00 | grad norm: 2.918 |",
            {"step": 200, "time_s": 0.431, "num_samples": 4.0, "loss": 7.2, "grad_norm": 2.918},
        ),
        (
            "completed step: 1, seconds:  0.323, TFLOP/s/device: 8671.953, loss: 13.424",
            {"step": 1, "time_s": 0.323, "flop_per_s": 8671.953e12, "loss": 13.424},
        ),
        (
            "# completed step: 5, seconds: 0.278, TFLOP/s: 54.058, loss: 9.663",
            {"step": 5, "time_s": 0.278, "flop_per_s": 54.058e12, "loss": 9.663},
        ),
        (
            "completed step: 3, seconds: 49.962, TFLOP/s/device: 56.062, main_model_loss: 11.550",
            {"step": 3, "time_s": 49.962, "loss": 11.55},
        ),
        (
            "(TaskRunner pid=6782) step:1 - actor/entropy:np.float64(1.39) - critic/rewards/mean:0.5 "
            "- timing_s/gen:698.9 - timing_s/update_actor:327.8 - timing_s/step:1268.5 - perf/total_num_tokens:5322462",
            {"step": 1, "time_s": 1268.5, "num_tokens": 5322462.0, "reward": 0.5},
        ),
    ],
)  # fmt: skip
def test_one_line_says_the_same(tmp_path: Path, line: str, says: dict[str, float]) -> None:
    (tmp_path / "out.log").write_text(line + "\n")
    (step,) = read_evidence([tmp_path]).steps
    assert {name: getattr(step, name) for name in says} == pytest.approx(says)


def test_a_hole_that_a_crash_left_hides_no_lines(tmp_path: Path) -> None:
    line = " iteration {}/10 | elapsed time per iteration (ms): 10.0 | lm loss: 1.0 |\n"
    (tmp_path / "out.log").write_bytes(line.format(1).encode() + b"\0" * 4096 + line.format(2).encode())
    assert [one.step for one in read_evidence([tmp_path]).steps] == [1, 2]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (source,) = read_evidence([tmp_path / "pipe"]).sources
    assert source.problem == "neither a file nor a folder"


def test_the_rank_that_reports_no_timeout_is_named(tmp_path: Path) -> None:
    """Ranks 1 to 3 time out in the same all-reduce; nothing says how many ranks there are."""
    (tmp_path / "out.log").write_text(
        "".join(
            f"[E ProcessGroupNCCL.cpp:457] [Rank {rank}] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1132079, OpType=ALLREDUCE, NumelIn=304640, NumelOut=304640, Timeout(ms)=1800000) ran for "
            "1800035 milliseconds before timing out.\n"
            for rank in (3, 2, 1)
        )
    )
    (first, *_) = explain(read_evidence([tmp_path]), FindingContext())
    assert first.rule.id == "hang"
    assert "Rank 0 did not report it" in first.seen.message


def test_sockets_to_another_node_are_seen_in_the_log_of_one_rank(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text(
        "n1:77:78 [6] NCCL INFO NET/IB : No device found.\n"
        "n1:77:78 [6] NCCL INFO NET/Socket : Using [0]eth0:10.1.1.1<0>\n"
        "n1:77:78 [6] NCCL INFO comm 0x55 rank 6 nranks 16 cudaDev 6 busId e1000 - Init START\n"
        "n1:77:78 [6] NCCL INFO Channel 00/0 : 6[6] -> 8[0] [send] via NET/Socket/0\n"
    )
    assert [one.rule.id for one in explain(read_evidence([tmp_path]), FindingContext())][:1] == ["tcp-fallback"]
