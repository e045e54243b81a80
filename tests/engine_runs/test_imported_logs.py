"""`run import`: logs that others published become run directories whose numbers are those of the log.

What is expected was computed by hand from the lines: medians of their times, and tokens from the batch of the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import Cli

LOGS = Path(__file__).parents[1] / "golden" / "logs"
GIB, MIB = 2.0**30, 2.0**20
OPT_1B = "layers=24,hidden=2048,heads=32,vocab=50272"
OPT_350M = "layers=24,hidden=1024,heads=16,vocab=50272"
MEGATRON_52B = "layers=64,hidden=8192,heads=32,vocab=50304"


@dataclass(frozen=True)
class Published:
    """A log, what the page around it says, and what the run directory must say."""

    log: str
    model: str
    layout: str
    seq: int
    engine: str
    step_s: float
    tokens: int
    """Of a step."""
    loss: float | None = None
    """Of the first step."""
    memory_bytes: float | None = None


PUBLISHED = (
    # 32 devices x 6,785 tokens/s: 262,144 tokens take 1.2074 s
    Published("torchtitan_llama3_8b.log", "llama3-8b", "dp=32,mbs=1,gbs=32,zero=3", 8192, "torchtitan",
              262144 / (32 * 6785), 262144, 3.4370, 68.57 * GIB),
    Published("torchtitan_llama3_8b_fp8.log", "llama3-8b", "dp=32,mbs=1,gbs=32,zero=3", 8192, "torchtitan",
              262144 / (32 * 7865), 262144, 3.4255, 63.48 * GIB),
    # median of 46.86, 46.84, 47.12, 47.15, 46.81
    Published("nemo_llama_l40s.log", "llama3-8b", "dp=8,mbs=1,gbs=512,zero=1", 1024, "nemo", 46.86, 512 * 1024, 11.03),
    # median of 87.0, 86.5, 88.4 ms
    Published("megatron_gpt3_7b.log", "layers=36,hidden=4096,heads=32", "tp=4,pp=2,dp=2,mbs=1,gbs=2", 2048, "megatron",
              0.0870, 4096, 10.86954),
    # the two middle ones of 159.7789, 141.0968, 137.1384, 138.9289 s
    Published("megatron_deepspeed_52b.log", MEGATRON_52B, "tp=4,pp=16,dp=1,mbs=4,gbs=1024", 1024, "megatron",
              (141.0968 + 138.9289) / 2, 2**20, 12.44238, 19961.072265625 * MIB),
    # the two middle ones of 123.7424, 128.9170, 128.6427, 127.7660 s
    Published("megatron_zero_52b.log", MEGATRON_52B, "tp=4,dp=16,mbs=48,gbs=768,zero=2", 1024, "megatron",
              (128.6427 + 127.7660) / 2, 768 * 1024, 12.52221, 26118.2294921875 * MIB),
    Published("megatron_deepspeed_200b.log", "layers=80,hidden=14400,heads=96,vocab=250000",
              "tp=8,pp=10,dp=2,mbs=1,gbs=2048", 2048, "megatron", 430.21, 2048 * 2048, 63.73876),
    # ten steps between 01:47:14.046, 21.493, 28.945 and 36.399; the other: 03:36:08.632, 11.572, 14.512, 17.467
    Published("deepspeed_sft_opt_1.3b.log", OPT_1B, "dp=16,mbs=8,gbs=128,zero=2", 512, "deepspeed", 0.7452, 128 * 512,
              None, 22.95 * GIB),
    Published("deepspeed_reward_opt_350m.log", OPT_350M, "dp=16,mbs=4,gbs=64", 512, "deepspeed", 0.2940, 64 * 512,
              None, 12.81 * GIB),
    Published("megatron_bridge_llama3_8b.log", "llama3-8b", "dp=8,mbs=4,gbs=128", 8192, "megatron", 20.2891,
              128 * 8192, 12.58695),
    # the two of 517.0 and 508.4 ms
    Published("primus_llama_1b.log", "layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,gated=1",
              "dp=8,mbs=4,gbs=32", 8192, "megatron", 0.5127, 32 * 8192, 11.58133, 95.57 * GIB),
    Published("maxtext_deepseek2_16b.log", "deepseek-v2-lite", "dp=4,mbs=1,gbs=4,zero=3", 2048, "maxtext", 1.012,
              4 * 2048, 12.047),
)  # fmt: skip


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case.log)
def test_a_published_log_says_in_the_run_directory_what_it_says_itself(
    case: Published, cli: Cli, tmp_path: Path
) -> None:
    done = cli(
        "run", "import", str(LOGS / case.log), "--model", case.model, "--layout", case.layout, "--seq", str(case.seq),
        "--run-dir", str(tmp_path / "run"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    numbers = {row["name"]: row["measured"] for row in summary["comparisons"]}
    assert numbers["step_time"] == pytest.approx(case.step_s, rel=2e-3)
    assert numbers["tokens_per_s"] == pytest.approx(case.tokens / case.step_s, rel=4e-3)
    assert (summary["losses"] or [None])[0] == (None if case.loss is None else pytest.approx(case.loss, rel=1e-5))
    assert numbers["peak_memory"] == (None if case.memory_bytes is None else pytest.approx(case.memory_bytes, rel=1e-4))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["engine"] == case.engine


def test_five_dialects_are_among_them() -> None:
    assert {case.engine for case in PUBLISHED} >= {"torchtitan", "nemo", "megatron", "deepspeed", "maxtext"}


def test_a_system_puts_the_prediction_of_the_programs_stack_beside_it(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = cli(
        "run", "import", str(LOGS / "torchtitan_llama3_8b.log"), "--model", "llama3-8b", "--layout",
        "dp=32,mbs=1,gbs=32,zero=3,recompute=selective", "--system", "generic-h100", "--run-dir", str(run),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step time" in done.stdout
    prediction = json.loads((run / "prediction.json").read_text())
    assert prediction["input"]["stack"] == "compiled"
    for command in (("report",), ("explain",)):
        shown = cli(*command, str(run))
        assert shown.returncode in (0, 1), shown.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("absent.log",), "absent.log: no such file"),
        (("empty.log",), "holds no training step that is understood"),
        (("times.log",), "has 2 steps and no time of any"),
    ],
)
def test_a_log_that_says_nothing_is_refused(words: tuple[str, ...], message: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("nothing to see here\n")
    (tmp_path / "times.log").write_text("step 1 loss: 2.5\nstep 2 loss: 2.4\n")
    done = cli("run", "import", *words, "--model", "llama3-8b", "--layout", "dp=8,mbs=1,gbs=8", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_layout_that_the_log_contradicts_is_refused(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "run", "import", str(LOGS / "megatron_deepspeed_52b.log"), "--model", MEGATRON_52B, "--layout",
        "tp=8,pp=8,dp=1,mbs=4,gbs=1024", "--seq", "1024", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "the log says tp=4, and --layout says 8" in done.stderr
    assert not (tmp_path / "runs").exists()
