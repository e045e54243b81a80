"""Forms of logs that releases and forks had: other separators, names and spaces, as seen in public repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

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
