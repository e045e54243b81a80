"""The post-mortem fills the template from what was read, and no text of a log becomes markup or shows a secret."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.evidence.facts import Happening, JobFact, Spot, StepFact
from scalewright.observe.postmortem import build_postmortem
from scalewright.records.redaction import is_secret, redacted
from scalewright.report.postmortem.markdown import postmortem_markdown
from scalewright.report.postmortem.page import postmortem_page

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
GIB = 2.0**30
HOSTILE = "ValueError: <script>alert(1)</script> <img src=x onerror=alert(2)> | **bold** [a](javascript:b) `x`"
SECTIONS = [
    "Symptom and timeline", "Environment", "Resources: requested and used", "Bottleneck evidence",
    "Incident artifacts", "Root cause", "Countermeasures",
]  # fmt: skip


def failed_run(message: str = "ValueError: bad sample") -> Evidence:
    spot = Spot(file="job.out", line=9, text=message)
    return Evidence(
        steps=[
            StepFact(step=n, spot=spot, dialect="x", rank=rank, time_s=2.0, at_s=100.0 + 2 * n, loss=3.0 - 0.01 * n)
            for n in range(1, 21) for rank in (0, 1)
        ],
        happenings=[
            Happening(kind="traceback", spot=spot, message=message, rank=1, at_s=141.0, host="nid2"),
            Happening(kind="connection_lost", spot=spot, message="Connection closed by peer", rank=0, at_s=142.0),
            Happening(kind="cancelled", spot=spot, message="*** STEP 7.0 ON nid1 CANCELLED ***", at_s=150.0),
        ],
        jobs=[
            JobFact(job_id="7", spot=spot, state="FAILED", exit_code=1, num_nodes=2, nodes=("nid1", "nid2"), num_gpus=2,
                    num_cpus=16, limit_s=3600.0, elapsed_s=60.0, requested_memory_bytes=64 * GIB,
                    peak_memory_bytes=9 * GIB, submitted_at_s=0.0, started_at_s=90.0)
        ],
        sources=[SourceFact(file="job.out", kind="megatron log", num_lines=900, num_facts=20)],
        environment={"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_abcdefghijklmnopqrst", "WANDB_API_KEY": "0123456789abcdef"},
        versions={"torch": "2.13.0"},
    )  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers |= {name for name, _ in attrs if name.startswith("on") or name in ("src", "href")}


def both(evidence: Evidence) -> tuple[str, str]:
    postmortem = build_postmortem(evidence, name="run <7>")
    return postmortem_markdown(postmortem), postmortem_page(postmortem, evidence)


def test_every_section_of_the_template_is_there_in_order() -> None:
    markdown, page = both(failed_run())
    assert re.findall(r"^## \d\. (.+)$", markdown, re.M) == SECTIONS
    assert re.findall(r"<h2>\d\. (.+)</h2>", page) == SECTIONS


def test_it_says_who_began_it_who_followed_and_what_was_used() -> None:
    markdown, _ = both(failed_run())
    assert "Rank 1 on nid2 failed first after step 20: ValueError: bad sample" in markdown
    assert "initiating: 1 event on 1 rank (1) began the end" in markdown
    assert "cascading: 1 event on 1 rank (0) followed" in markdown
    assert "teardown: 1 event ended what was left" in markdown
    assert "| time | 60.0 min | 60.0 s | 2% of the limit |" in markdown
    assert "| host memory | 64.0 GiB | 9.00 GiB | largest task, sampled |" in markdown
    assert "Where it lies: code" in markdown


def test_no_text_of_a_log_becomes_markup() -> None:
    markdown, page = both(failed_run(HOSTILE))
    tags = Tags()
    tags.feed(page)
    assert not tags.tags & {"script", "img", "a", "iframe", "svg"}
    assert not tags.handlers
    assert "&lt;script&gt;" in page
    assert "<script" not in markdown
    assert "<img" not in markdown
    assert "\\| \\*\\*bold\\*\\* \\[a\\](javascript:b) \\`x\\`" in markdown


def test_secrets_are_nowhere() -> None:
    evidence = failed_run("RuntimeError: login with token=hf_abcdefghijklmnopqrst to https://me:hunter22@host/x failed")
    for text in both(evidence):
        assert "NCCL" in text
        for secret in ("hf_abcdefghijklmnopqrst", "0123456789abcdef", "hunter22"):
            assert secret not in text


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "SSH_KEY", "SLURM_JWT", "key"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "MONKEY", "MAX_TOKENS", "KEYBOARD", "SLURM_JOB_ID"]
)
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize("text", ["tokens: 4096", "num_tokens=1.2e6", "tokenizer: meta-llama/Llama", "key: value"])
def test_numbers_of_tokens_stay(text: str) -> None:
    assert redacted(text) == text


def test_nothing_to_read_is_said() -> None:
    markdown, page = both(Evidence())
    assert "Not enough evidence" in markdown
    assert "More could be said with" in page


def test_the_command_writes_both_forms_and_refuses_another_ending(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    run = tmp_path / "run"
    (run / "events").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"schema": "scalewright.run/1", "id": "r", "kind": "language"}))
    (run / "exit_info.json").write_text(json.dumps({
        "schema": "scalewright.exit-info/1", "code": 3, "reason": "rank 1 ended with signal SIGKILL: see logs",
        "job": "j", "attempt": 0, "rank": 1, "last_checkpoint": "checkpoints/step-00000010", "time": 1e9,
    }))  # fmt: skip
    assert cli("postmortem", "run", "--out", "p.html", cwd=tmp_path).returncode == 0
    assert "SIGKILL" in (tmp_path / "p.html").read_text()
    assert "checkpoints/step-00000010" in cli("postmortem", "run", cwd=tmp_path).stdout
    assert ".html" in refused(cli("postmortem", "run", "--out", "p.pdf", cwd=tmp_path))
    (tmp_path / "empty").mkdir()
    unknown = cli("postmortem", "empty", cwd=tmp_path)
    assert unknown.returncode == 1
    assert "Not enough evidence" in unknown.stdout
