"""Tracebacks of ranks: the exception that came first, its place in the user's code, and sizes that it names."""

# ruff: noqa: E501 - lines are as long as programs write them

from __future__ import annotations

import pytest

from .machine_text import happenings

MISSING = """Traceback (most recent call last):
  File "/home/u/train.py", line 10, in main
    load()
  File "/opt/venv/lib/python3.11/site-packages/data/io.py", line 3, in load
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'
"""


def test_the_users_own_line_and_the_path_are_named() -> None:
    (one,) = happenings(MISSING, "traceback")
    assert one.message == "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'"
    assert one.values["place"] == "/home/u/train.py:10 in main"
    assert one.values["path"] == "/data/a.bin"
    assert one.spot.line == 6


@pytest.mark.parametrize(
    ("chain", "root"),
    [
        ("The above exception was the direct cause of the following exception:", "FileNotFoundError"),
        ("During handling of the above exception, another exception occurred:", "FileNotFoundError"),
    ],
)
def test_a_chain_is_read_to_its_root(chain: str, root: str) -> None:
    text = f"""{MISSING}
{chain}

Traceback (most recent call last):
  File "/home/u/train.py", line 12, in main
    raise RuntimeError("cannot start")
RuntimeError: cannot start
"""
    (one,) = happenings(text, "traceback")
    assert one.values["exception"] == root
    assert one.values["final"] == "RuntimeError: cannot start"


def test_what_is_raised_while_a_lookup_is_handled_is_the_error() -> None:
    text = """Traceback (most recent call last):
  File "cache.py", line 1, in get
    return self.store[key]
KeyError: 17

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 2, in main
    x = torch.empty(n, device="cuda")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.06 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 6.50 GiB is reserved by PyTorch but unallocated.
"""
    (one,) = happenings(text)
    assert one.kind == "device_out_of_memory"
    gib = 2.0**30
    expected = {
        "requested_bytes": 2 * gib, "total_bytes": 79.1 * gib, "free_bytes": 1.06 * gib, "allocated_bytes": 70 * gib,
        "reserved_unallocated_bytes": 6.5 * gib,
    }  # fmt: skip
    assert {name: one.values[name] for name in expected} == pytest.approx(expected)


def test_ranks_that_write_at_once_are_kept_apart() -> None:
    text = """[rank3]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank3]:   File "train.py", line 5, in <module>
[rank1]:   File "train.py", line 7, in <module>
[rank3]:     loss.backward()
[rank1]:     dist.all_reduce(x)
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:1, remote process exited
[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank1]: Last error:
[rank1]: socketProgress: Connection closed by remote peer node1<4444>
[rank3]: ValueError: operands could not be broadcast together
"""
    by_rank = {one.rank: one for one in happenings(text, "traceback")}
    assert by_rank[3].message == "ValueError: operands could not be broadcast together"
    assert by_rank[3].values["place"] == "train.py:5 in <module>"
    assert "Connection closed by remote peer" in by_rank[1].message


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            """Traceback (most recent call last):
  File "/a/b.py", line 1, in <module>
    next(it)
RuntimeError: Caught FileNotFoundError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/site-packages/torch/utils/data/_utils/worker.py", line 9, in _worker_loop
    data = fetcher.fetch(index)
  File "/a/dataset.py", line 44, in __getitem__
    img = open(p)
FileNotFoundError: [Errno 2] No such file or directory: 'img.jpg'
""",
            ["FileNotFoundError: [Errno 2] No such file or directory: 'img.jpg'"],
        ),
        (
            """Traceback (most recent call last):
  File "/a/main.py", line 1, in <module>
    ray.get(x)
ray.exceptions.RayTaskError(ValueError): ray::Worker.step() (pid=11, ip=10.0.0.2)
  File "/a/worker.py", line 3, in step
    raise ValueError("boom")
ValueError: boom
""",
            ["ValueError: boom"],
        ),
        (
            """  + Exception Group Traceback (most recent call last):
  |   File "/a/x.py", line 3, in <module>
  |     raise ExceptionGroup("two", [a, b])
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/a/x.py", line 1, in f
    | ValueError: bad value
    +---------------- 2 ----------------
    | OSError: [Errno 5] Input/output error
    +------------------------------------
""",
            ["ValueError: bad value", "OSError: [Errno 5] Input/output error"],
        ),
        (
            'concurrent.futures.process._RemoteTraceback: \n"""\n' + MISSING + '"""\n\n'
            "The above exception was the direct cause of the following exception:\n\n" + MISSING,
            ["FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'"],
        ),
    ],
    ids=["loader worker", "ray", "group", "process pool"],
)
def test_the_first_exception_of_workers_tasks_and_groups(text: str, messages: list[str]) -> None:
    assert [one.message for one in happenings(text, "traceback")] == messages


def test_a_destructor_that_fails_at_exit_is_harmless() -> None:
    text = "Exception ignored in: <function X.__del__ at 0x7f>\n" + MISSING
    (one,) = happenings(text, "traceback")
    assert one.is_benign


def test_log_lines_after_a_traceback_are_no_exceptions() -> None:
    text = MISSING + "INFO: restarting\nEpoch: 3\n2026-01-01 00:00:00 step 4 loss 2.0\n"
    (one,) = happenings(text, "traceback")
    assert "restarting" not in one.message


def test_a_file_that_ends_in_a_traceback_says_nothing() -> None:
    assert happenings("".join(MISSING.splitlines(keepends=True)[:3]), "traceback") == []


def test_torchrun_names_the_first_failure_with_its_time() -> None:
    text = """W0801 13:23:17.366000 3297 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 33051 closing signal SIGTERM
E0325 20:57:27.620000 2606 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 5 (pid: 2630) of binary: /usr/bin/python
Failures:
[1]:
  time      : 2026-05-19_16:39:59
  host      : n136
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 78971)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-05-19_16:39:58
  host      : n136
  rank      : 4 (local_rank: 0)
  exitcode  : -9 (pid: 78970)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 78970
============================================================
"""
    first = [one for one in happenings(text) if one.values.get("is_first")]
    assert [(one.kind, one.rank, one.host, one.values["signal"]) for one in first] == [("killed", 4, "n136", 9.0)]
    other = happenings(text, "exited")
    assert [(one.rank, one.values["exit_code"]) for one in other] == [(1, 1.0)]
    assert first[0].at_s is not None
    assert other[0].at_s == first[0].at_s + 1.0


@pytest.mark.parametrize(
    "line",
    [
        "Received SIGTERM: 15", "rank 3: caught signal SIGUSR1, saving", "Received Signals.SIGTERM death signal, shutting down",
        "train.py got SIGINT", "Terminated", "job.sh: line 12: 3412 Killed                  python train.py",
    ],
)  # fmt: skip
def test_a_signal_after_a_traceback_is_no_part_of_its_message(line: str) -> None:
    (one,) = happenings(MISSING + line + "\n", "traceback")
    assert line not in one.message
    assert one.message == happenings(MISSING, "traceback")[0].message
