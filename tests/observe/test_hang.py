"""A hang's first rank and collective: from real dumps of Gloo, and from dumps in NCCL's form with a known truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.flight_cases import Recorder, recorders

from scalewright.observe.hang import Stall, stalls
from scalewright.observe.readers.reading import read_evidence

GOLDEN = Path(__file__).parents[1] / "golden" / "flight"


def written(folder: Path, every: list[Recorder], *, without: tuple[int, ...] = ()) -> list[Stall]:
    for recorder in every:
        if recorder.rank not in without:
            recorder.write(folder)
    return stalls(read_evidence([folder]))


@pytest.mark.parametrize(
    ("folder", "kind", "ranks"),
    [
        ("gloo_stall", "not_joined", (2,)),
        ("gloo_stall_json", "not_joined", (2,)),
        ("gloo_mismatch", "mismatch", (1,)),
        ("gloo_chain", "not_joined", (3,)),
    ],
)
def test_real_dumps_name_the_rank(folder: str, kind: str, ranks: tuple[int, ...]) -> None:
    (stall,) = stalls(read_evidence([GOLDEN / folder]))
    assert (stall.kind, stall.ranks, stall.certainty) == (kind, ranks, "certain")
    assert stall.sequence == 4
    assert "default_pg" in stall.group


def test_a_healthy_run_has_no_stall() -> None:
    evidence = read_evidence([GOLDEN / "gloo_healthy"])
    assert len(evidence.flight_dumps) == 2
    assert stalls(evidence) == []


def test_a_chain_over_groups_ends_at_the_first_rank(tmp_path: Path) -> None:
    """5 stalls; 4 waits for it in a pair of tensor parallel ranks; the others wait for both in the default group."""
    every = recorders(8, {"1": [4, 5], "2": [6, 7]})
    for recorder in every:
        recorder.add("0")
        if recorder.rank == 4:
            recorder.add("1", "_all_gather_base", state="scheduled")
        elif recorder.rank != 5:
            recorder.add("0", "_reduce_scatter_base", state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks, stall.certainty) == ("not_joined", (5,), "certain")
    assert stall.collective == "_reduce_scatter_base"
    assert stall.sequence == 2
    assert stall.since_s == pytest.approx(1_760_000_000.001)


def test_two_ranks_that_stall_are_both_named(tmp_path: Path) -> None:
    every = recorders(8, {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]})
    for recorder in every:
        group = "1" if recorder.rank < 4 else "2"
        recorder.add(group)
        if recorder.rank not in (2, 7):
            recorder.add(group, "all_to_all", state="scheduled")
    causes = written(tmp_path, every)
    assert sorted(stall.ranks for stall in causes) == [(2,), (7,)]


def test_a_rank_without_a_dump_is_named_if_all_wait_for_it(tmp_path: Path) -> None:
    every = recorders(8)
    for recorder in every:
        recorder.add("0", state="scheduled")
    (stall,) = written(tmp_path, every, without=(3,))
    assert (stall.kind, stall.ranks, stall.certainty) == ("no_dump", (3,), "likely")
    assert "rank 3" in stall.missing


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02}(X\x07\x00\x00\x00versionq\x00X\x03\x00\x00\x002.9q\x01X\x09\x00\x00\x00pg_configq\x02"]
)
def test_an_empty_or_cut_dump_counts_as_none(tmp_path: Path, content: bytes) -> None:
    every = recorders(8)
    for recorder in every:
        recorder.add("0", state="scheduled")
    (tmp_path / "nccl_trace_rank_3").write_bytes(content)
    (stall,) = written(tmp_path, every, without=(3,))
    assert (stall.kind, stall.ranks) == ("no_dump", (3,))
    assert any("nccl_trace_rank_3" in spot.file for spot in stall.spots)


def test_a_dump_without_entries_says_that_its_rank_waits_for_nobody(tmp_path: Path) -> None:
    every = recorders(4)
    for recorder in every:
        if recorder.rank != 1:
            recorder.add("0", state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks) == ("not_joined", (1,))


def test_half_of_the_dumps_missing_is_not_decided(tmp_path: Path) -> None:
    every = recorders(8)
    for recorder in every:
        recorder.add("0", state="scheduled")
    (stall,) = written(tmp_path, every, without=(4, 5, 6, 7))
    assert (stall.kind, stall.ranks) == ("undecided", ())
    assert "ranks 4 to 7" in stall.missing


def test_all_joined_names_nobody(tmp_path: Path) -> None:
    every = recorders(4)
    for recorder in every:
        recorder.add("0", state="started")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks) == ("all_joined", ())


def test_a_kernel_that_never_started_is_a_hint(tmp_path: Path) -> None:
    every = recorders(4)
    for recorder in every:
        recorder.add("0", state="scheduled" if recorder.rank == 2 else "started")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks, stall.certainty) == ("all_joined", (2,), "possible")


def test_a_device_that_stopped_while_peers_went_on(tmp_path: Path) -> None:
    """The peers completed 9 operations that rank 1 still has open, and wait for it in another one."""
    every = recorders(4, {"1": [0, 1]})
    for recorder in every:
        for number in range(9):
            if recorder.rank < 2:
                recorder.add("1", state="scheduled" if recorder.rank == 1 and number else "completed")
        if recorder.rank != 1:
            recorder.add("0", state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks, stall.certainty) == ("device_stopped", (1,), "likely")


def test_a_recorder_that_is_one_operation_late_is_not_blamed(tmp_path: Path) -> None:
    every = recorders(4)
    for recorder in every:
        recorder.add("0", state="scheduled" if recorder.rank == 1 else "completed")
        if recorder.rank != 3:
            recorder.add("0", state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks) == ("not_joined", (3,))


def test_sizes_that_differ_are_a_mismatch_of_the_minority(tmp_path: Path) -> None:
    every = recorders(4)
    for recorder in every:
        recorder.add("0")
        recorder.add("0", size=2048 if recorder.rank == 2 else 1024, state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks, stall.sequence) == ("mismatch", (2,), 2)


def test_two_against_two_does_not_say_who_is_wrong(tmp_path: Path) -> None:
    every = recorders(2)
    for recorder in every:
        recorder.add("0", "broadcast" if recorder.rank else "all_reduce", state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks, stall.certainty) == ("mismatch", (0, 1), "likely")
    assert "do not say who is wrong" in stall.sentence


def test_uneven_all_to_all_is_no_mismatch(tmp_path: Path) -> None:
    every = recorders(4)
    for recorder in every:
        recorder.add("0", "all_to_all", size=100 + recorder.rank)
    assert written(tmp_path, every) == []


def test_pipeline_ranks_lead_to_the_one_that_never_received(tmp_path: Path) -> None:
    every = recorders(4, {"1": [0, 1, 2, 3]})
    for rank, recorder in enumerate(every):
        if rank > 0 and rank != 3:
            recorder.add("1", f"recv {rank}<-{rank - 1}")
        if rank < 3:
            recorder.add("1", f"send {rank}->{rank + 1}", state="scheduled" if rank == 2 else "completed")
        if rank < 2:
            recorder.add("0", state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.ranks) == ("not_joined", (3,))


def test_a_circle_is_said_and_not_certain(tmp_path: Path) -> None:
    """0 is in group 1 and 1 in group 2: each has not issued what the other waits in."""
    every = recorders(2, {"1": [0, 1], "2": [0, 1]})
    every[0].add("1", state="scheduled")
    every[1].add("2", state="scheduled")
    (stall,) = written(tmp_path, every)
    assert (stall.kind, stall.certainty) == ("circle", "possible")


def test_parts_of_a_coalesced_operation_have_the_state_of_the_whole(tmp_path: Path) -> None:
    every = recorders(2, {"1": [0, 1]})
    for rank, recorder in enumerate(every):
        pair = "send 0->1" if rank == 0 else "recv 1<-0"
        recorder.add("1", pair, state="scheduled", p2p_seq_id=7)
        recorder.add("1", "coalesced", is_p2p=True, p2p_seq_id=7)
    assert written(tmp_path, every) == []


def test_the_content_says_the_rank_where_the_name_does_not(tmp_path: Path) -> None:
    import pickle

    recorder = Recorder(6, {"0": range(8), "1": [4, 5, 6, 7], "2": [2, 6]})
    recorder.add("1")
    (tmp_path / "dump.bin2").write_bytes(pickle.dumps(recorder.document(), protocol=4))
    (dump,) = read_evidence([tmp_path]).flight_dumps
    assert dump.rank == 6


def watchdog(rank: int, sequence: int, *, last: int, completed: int, name: str = "ALLREDUCE") -> str:
    start = f"[rank{rank}]:[E1003 18:37:01.83 ProcessGroupNCCL.cpp:607]"
    return (
        f"{start} [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence}, "
        f"OpType={name}, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800017 milliseconds before timing out.\n"
        f"{start} [PG 0 (default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: "
        f"{sequence}, last enqueued NCCL work: {last}, last completed NCCL work: {completed}.\n"
    )


@pytest.mark.parametrize(
    ("lines", "kind", "ranks", "certainty"),
    [
        ([watchdog(rank, 78, last=79, completed=77, name="BROADCAST") for rank in (1, 2, 3)]
         + ["[rank0]: [PG 0 (default_pg) Rank 0] Received a dump signal due to a collective timeout from rank 1 and we "
            "will try our best to dump the debug info. Last enqueued NCCL work: 77, last completed NCCL work: 77.\n"],
         "not_joined", (0,), "certain"),
        ([watchdog(rank, 78, last=79, completed=77) for rank in (0, 1, 3)] + ["[rank2]: hello\n"]
         + ["n1:1:1 [0] NCCL INFO comm 0x5 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"],
         "not_joined", (2,), "likely"),
        ([watchdog(rank, 78, last=79, completed=77, name="BARRIER" if rank == 2 else "ALLREDUCE") for rank in range(4)],
         "mismatch", (2,), "likely"),
        ([watchdog(rank, 78, last=79, completed=77) for rank in range(4)], "undecided", (), "possible"),
    ],
    ids=["behind", "silent", "other operation", "all alike"],
)  # fmt: skip
def test_logs_of_watchdogs_without_dumps(
    tmp_path: Path, lines: list[str], kind: str, ranks: tuple[int, ...], certainty: str
) -> None:
    (tmp_path / "job.log").write_text("".join(lines))
    (stall,) = stalls(read_evidence([tmp_path]))
    assert (stall.kind, stall.ranks, stall.certainty) == (kind, ranks, certainty)
    assert stall.sequence == 78
    assert stall.spots
