"""Files as they lie about: packed, cut, rotated, interleaved, mixed, unknown, hostile."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from pathlib import Path

import pytest
from tests.observe.readers.log_cases import read_text
from tests.observe.readers.test_pretraining_logs import megatron

from scalewright.observe.readers import source as source_module
from scalewright.observe.readers.prefixes import parsed_prefix, time_in
from scalewright.observe.readers.reading import read_evidence, rotated_groups
from scalewright.observe.readers.source import Source


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_are_opened_by_content(tmp_path: Path, pack: object) -> None:
    evidence = read_text(tmp_path, pack(megatron(10).encode()), "no_suffix")  # type: ignore[operator]
    assert [fact.step for fact in evidence.steps] == [10]


def test_a_packed_file_of_several_members_and_a_cut_one(tmp_path: Path) -> None:
    whole = gzip.compress(megatron(10).encode()) + gzip.compress(
        "".join(megatron(step) for step in range(11, 400)).encode()
    )
    assert len(read_text(tmp_path, whole).steps) == 390
    evidence = read_text(tmp_path, whole[: len(whole) // 2], "cut")
    assert evidence.steps
    assert "ends in the middle" in evidence.sources[0].problem


def test_a_gzip_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "LEAST_BOMB_BYTES", 2**20)
    evidence = read_text(tmp_path, gzip.compress(b"a\n" * 2**22, 9), "bomb")
    assert "reading stopped" in evidence.sources[0].problem
    assert evidence.sources[0].num_lines < 2**22


def test_utf_16_and_wrong_utf_8(tmp_path: Path) -> None:
    assert [fact.step for fact in read_text(tmp_path, megatron(10).encode("utf-16")).steps] == [10]
    assert [fact.step for fact in read_text(tmp_path, b"\xff\xfa\x80 bad\n" + megatron(11).encode()).steps] == [11]


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    evidence = read_text(tmp_path, "x" * (6 * 2**20) + "\n" + megatron(10))
    assert [(fact.step, fact.spot.line) for fact in evidence.steps] == [(10, 2)]
    assert "are cut" in evidence.sources[0].problem


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\0\1\2\3" * 100, b"{", b"\x1f\x8b", b"BZh9", b"[" * 10000, b'{"a":' * 5000]
)
def test_broken_content_is_a_source_with_a_reason_or_nothing(tmp_path: Path, content: bytes) -> None:
    evidence = read_text(tmp_path, content)
    assert len(evidence.sources) == 1
    assert not evidence.steps


def test_random_bytes_never_raise(tmp_path: Path) -> None:
    draw = random.Random(7)
    lines = (
        megatron(10)
        + "step:1 - timing_s/step:1.0\n{'loss': 1.0}\nperf 0: {'perf/step_time': 1}\nTrain step 1/2 done\n• Loss: 1\n"
    )
    for seed in range(60):
        data = bytearray(lines.encode())
        for _ in range(draw.randint(1, 40)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        evidence = read_text(tmp_path, bytes(data[: draw.randrange(len(data))]), f"case{seed}")
        assert all(step.loss is None or isinstance(step.loss, float) for step in evidence.steps)


def test_redraws_are_dropped_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "bars.log"
    path.write_bytes(b"first\n\r  1%|a| 1/9\r  2%|b| 2/9\r  3%|c| 3/9 {'loss': 1}\r  4%|d| 4/9\nlast\r\n")
    lines = [(line.number, line.text) for line in Source(path, "bars").lines()]
    assert [number for number, _ in lines] == [1, 2, 2, 2, 3]
    assert [text.split("|")[0].strip() for _, text in lines] == ["first", "2%", "3%", "4%", "last"]


@pytest.mark.parametrize(
    ("raw", "text", "rank", "actor"),
    [
        ("[rank3]: hello", "hello", 3, ""),
        ("[default7]:hello", "hello", 7, ""),
        (" 4: hello", "hello", 4, ""),
        ("[1,12]<stdout>: hello", "hello", 12, ""),
        ("[1,12]<stderr>:hello", "hello", 12, ""),
        ("(TaskRunner pid=678203) hello", "hello", None, "TaskRunner"),
        ("(WorkerDict pid=1, ip=10.0.0.2) [rank1]: hello", "hello", 1, "WorkerDict"),
        ("0: [rank3]: hello", "hello", 3, ""),
        ("2024-01-01T00:00:00.123456789Z stdout F hello", "hello", None, ""),
        ("12:30 is a time", "12:30 is a time", None, ""),
        ("loss: 3 of 4", "loss: 3 of 4", None, ""),
        ("hello", "hello", None, ""),
    ],
)
def test_prefixes(raw: str, text: str, rank: int | None, actor: str) -> None:
    prefix = parsed_prefix(raw)
    assert (raw[prefix.length :], prefix.rank, prefix.actor) == (text, rank, actor)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("[2023-04-18 01:46:59,142] [INFO] [logging.py:96:log_dist] [Rank 0] hello", "hello"),
        ("[rank0]:[titan] 2025-06-26 18:23:14,486 - root - INFO - hello", "hello"),
        ("INFO 03-14 10:11:12 [loggers.py:100] hello", "hello"),
        ("2025-01-01 00:00:00.000 | INFO     | hello", "hello"),
        ("[rank4]:[E321 02:07:08.414640780 ProcessGroupNCCL.cpp:607] hello", "hello"),
    ],
)
def test_logger_prefixes(raw: str, message: str) -> None:
    assert parsed_prefix(raw).message(raw) == message


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("[2026-01-02 03:04:05.250] x", 1767323045.25),
        ("2026/01/02 03:04:05 x", 1767323045.0),
        ("2026-01-02T03:04:05Z x", 1767323045.0),
        ("2026-01-02T05:04:05+02:00 x", 1767323045.0),
        ("2026-01-01T21:34:05-05:30 x", 1767323045.0),
        ("[20260102 03:04:05] x", 1767323045.0),
        ("03:04:05 without a day", None),
        ("2026-13-02 03:04:05 x", None),
    ],
)
def test_times(text: str, at_s: float | None) -> None:
    assert time_in(text) == at_s


def test_rotated_files_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "job.log.2.gz").write_bytes(gzip.compress(megatron(10).encode()))
    (tmp_path / "job.log.1").write_text(megatron(20))
    (tmp_path / "job.log").write_text(megatron(30))
    (tmp_path / "other.log").write_text("nothing\n")
    evidence = read_evidence([tmp_path])
    assert [fact.step for fact in evidence.steps] == [10, 20, 30]
    assert {fact.attempt for fact in evidence.steps} == {0}
    names = [[path.name for path in group] for group in rotated_groups(tmp_path.iterdir())]
    assert names == [["job.log.2.gz", "job.log.1", "job.log"], ["other.log"]]


def test_a_restart_in_one_file_is_another_attempt(tmp_path: Path) -> None:
    text = "".join(megatron(step) for step in (10, 20, 30, 20, 30, 40))
    evidence = read_text(tmp_path, text)
    assert [(fact.step, fact.attempt) for fact in evidence.steps] == [
        (10, 0),
        (20, 0),
        (30, 0),
        (20, 1),
        (30, 1),
        (40, 1),
    ]
    assert "starts 2 times, at lines 1, 4" in evidence.notes[0]


def test_two_runs_mixed_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    other = [megatron(step, "9.0E+00").replace("/     100", "/    5000") for step in (10, 20, 30)]
    text = "".join(a + b for a, b in zip([megatron(step) for step in (10, 20, 30)], other, strict=True))
    evidence = read_text(tmp_path, text)
    losses = {attempt: [fact.loss for fact in evidence.steps if fact.attempt == attempt] for attempt in (0, 1)}
    assert losses == {0: [2.5] * 3, 1: [9.0] * 3}
    assert "2 runs mixed in one file" in evidence.notes[0]


def test_ranks_that_are_interleaved_are_not_two_runs(tmp_path: Path) -> None:
    text = "".join(f"[rank{rank}]: {megatron(step)}" for step in (10, 20) for rank in (0, 1))
    evidence = read_text(tmp_path, text)
    assert [(fact.step, fact.rank) for fact in evidence.steps] == [(10, 0), (10, 1), (20, 0), (20, 1)]
    assert evidence.notes == []


def test_a_folder_of_anything(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(megatron(10))
    (tmp_path / "weights.safetensors").write_bytes(b"\0" * 100)
    (tmp_path / "core").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "link").symlink_to(tmp_path / "a.log")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "notes.txt").write_text("nothing to see\n")
    evidence = read_evidence([tmp_path])
    kinds = {Path(one.file).name: one.kind for one in evidence.sources}
    assert kinds == {"a.log": "megatron log", "core": "unknown", "notes.txt": "unknown text"}


def test_empty_and_missing(tmp_path: Path) -> None:
    assert "has no files" in read_evidence([tmp_path]).notes[0]
    assert read_evidence([tmp_path / "nowhere"]).sources[0].kind == "missing"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("iter 100: loss 2.3456, time 123.45ms, mfu 30.12%", {"step": 100, "loss": 2.3456, "time_s": 0.12345, "mfu_frac": 0.3012}),
        ("step 00010/21400 (0.05%) | loss: 8.01 | lrm: 1.00 | dt: 1234.5ms | tok/sec: 123,456 | mfu: 45.12 | total time: 1.2m", {"step": 10, "last_step": 21400, "time_s": 1.2345, "tokens_per_s": 123456.0}),
        ("step   11/ 1000 | loss 7.1 (+nanz)| norm 1.2 (+nanz)| lr 1.00e-03 | 123.4 ms | 45.1% bf16 MFU | 4123 tok/s", {"step": 11, "time_s": 0.1234, "tokens_per_s": 4123.0, "mfu_frac": 0.451}),
        ("Epoch: [2][  13/5005]\tTime  0.421 ( 0.512)\tData  0.010 ( 0.200)\tLoss 6.9e+00 (7.0e+00)", {"step": 10023, "time_s": 0.421, "loss": 6.9}),
        ('{"step": 60, "train/loss": 2.1, "step_time_ms": 350.0, "train/tokens_per_sec": 1000}', {"step": 60, "loss": 2.1, "time_s": 0.35, "tokens_per_s": 1000.0}),
        ("step:12/1480 train_loss:7.2 train_time:1234ms step_avg:123.4ms", {"step": 12, "loss": 7.2, "time_s": None}),
        ("Step 510 - Loss: 1.25 | Time: 3.2s | Memory: 34.5GB", {"step": 510, "loss": 1.25, "time_s": 3.2, "memory_bytes": 34.5 * 2**30}),
        ("epoch 001:    100 / 1000 loss=15.9, nll_loss=15.2, wps=12345, num_updates=500, lr=1e-5, gnorm=2.3, train_wall=60", {"step": 500, "loss": 15.9, "grad_norm": 2.3, "time_s": None}),
        ("step 7 time 3.2 loss 1.5", {"step": 7, "loss": 1.5, "time_s": None}),
    ],
)  # fmt: skip
def test_unknown_programs_are_read_where_it_is_clear(tmp_path: Path, line: str, fields: dict[str, float]) -> None:
    evidence = read_text(tmp_path, line + "\n")
    (fact,) = evidence.steps
    assert {name: getattr(fact, name) for name in fields} == pytest.approx(fields)
    assert evidence.sources[0].kind == "log of an unknown program"


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: loss scale is 65536", "the loss of a worker at step two", "Using loss function: cross entropy", "step 4 of the installation",
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:01<00:01,  1.20it/s]", "loss_scale ....... 1.0",
    ],
)  # fmt: skip
def test_talk_of_losses_and_steps_is_no_step(tmp_path: Path, line: str) -> None:
    assert read_text(tmp_path, line + "\n").steps == []


def test_a_block_of_lines_below_its_step(tmp_path: Path) -> None:
    text = (
        "2024-01-01T00:00:00.123 INFO [olmo.train:966, rank=0] [step=400/1000,epoch=0]\n    train/CrossEntropyLoss=11.20\n"
        "    throughput/device/tokens_per_second=9,000\n    System/Peak GPU Memory (MB)=38,000\nother text\n"
    )
    (fact,) = read_text(tmp_path, text).steps
    assert (fact.step, fact.loss, fact.tokens_per_s, fact.is_per_device) == (400, 11.2, 9000.0, True)
    assert fact.memory_bytes == 38000 * 2**20


def test_blocks_that_cut_a_record_give_the_same_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(megatron(step) + f"[batch={step}/9]:\n\t Train loss/train/total: {step}.5\n" for step in range(1, 9))
    whole = read_text(tmp_path, text)
    monkeypatch.setattr(source_module.Source.chunks, "__defaults__", (97,))
    pieces = read_text(tmp_path, text)
    assert pieces.steps == whole.steps
    assert len(whole.steps) == 16


def test_values_that_no_program_writes_are_a_problem_of_their_line(tmp_path: Path) -> None:
    rows = ['{"step": NaN, "loss": 1.0}', '{"step": 1e999, "loss": 2.0}', '{"step": -5, "loss": 2.0}']
    evidence = read_text(tmp_path, "\n".join([*rows, '{"step": 7, "loss": 3.0, "grad_norm": 1.0}']) + "\n")
    assert [one.step for one in evidence.steps if one.loss == 3.0] == [7]
    assert all(0 <= one.step < 100 for one in evidence.steps)


def test_a_line_without_end_is_no_report(tmp_path: Path) -> None:
    # 1 MB in one line: expressions that try every position would take minutes.
    text = "step 1 loss 2 " + "x" * 1_000_000 + "\nstep 2 loss 1.5 time 1.0s\n"
    assert [one.step for one in read_text(tmp_path, text).steps] == [2]


def test_two_trainers_in_one_file_are_said(tmp_path: Path) -> None:
    text = "".join(
        f" iteration {step}/ 100 | elapsed time per iteration (ms): 500.0 | lm loss: 2.0 |\n"
        f"completed step: {step}, seconds: 5.6, TFLOP/s/device: 134.9, Tokens/s/device: 8672.7, loss: 10.3\n"
        for step in range(1, 5)
    )
    assert any("maxtext and megatron" in note for note in read_text(tmp_path, text).notes)
