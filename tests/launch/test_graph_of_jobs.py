"""Graphs of jobs: what a file may say, what is drawn, and what is decided from how its jobs stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.launch.graph.file import GraphFile
from scalewright.launch.graph.graph import Graph, RetryRule, dot, outline, resolve
from scalewright.launch.graph.manifest import LaunchManifest, SlurmJob
from scalewright.launch.graph.progress import decide, excluded_nodes
from scalewright.launch.slurm.job_state import JobState
from scalewright.records.loader import restore, stored, validate

SIZE = {"command": ["run"], "nodes": 1, "gpus_per_node": 1, "time": "00:10:00"}


def graph_of(jobs: dict[str, dict[str, object]]) -> Graph:
    raw = {"schema": "scalewright.graph/1", "name": "g", "site": "generic"}
    file = validate({**raw, "jobs": {n: SIZE | s for n, s in jobs.items()}}, GraphFile, where="g.toml")
    return resolve(file, Path("/x/g.toml"))


def manifest_of(*jobs: SlurmJob, **changes: object) -> LaunchManifest:
    return LaunchManifest(name="g", created="", max_array_tasks=4, token="t", slurm_jobs=jobs, **changes)  # type: ignore[arg-type]


def job(name: str, states: dict[int, JobState], *, number: int = 0, part: int = 0, **changes: object) -> SlurmJob:
    tasks = ",".join(map(str, sorted(states))) if len(states) > 1 or part else ""
    made = SlurmJob(
        tag=f"t-{name}-{number}", name=f"g.{name}", graph_job=name, script="", run_dir="", planned_s=0.0,
        id=str(number + 1), tasks=tasks, part=part, first_item=4 * part,
    )  # fmt: skip
    return replace(made.with_states(states), **changes)  # type: ignore[arg-type]


OK, BAD, RUN = JobState.COMPLETED, JobState.FAILED, JobState.RUNNING


def due_jobs(graph: Graph, manifest: LaunchManifest, now_s: float = 100.0) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(w.graph_job, w.part, w.tasks) for w in decide(graph, manifest, now_s=now_s).to_submit]


def test_circle_is_named() -> None:
    with pytest.raises(ConfigError, match=r"in a circle \((a after c after b after a|b after a after c after b|"
                                          r"c after b after a after c)\)"):  # fmt: skip
        graph_of({"a": {"after": {"c": "ok"}}, "b": {"after": {"a": "ok"}}, "c": {"after": {"b": "ok"}}})


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ({"a": {"after": {"bb": "ok"}}, "b": {}}, "no job is called 'bb': did you mean b"),
        ({"a": {"after": {"b": "maybe"}}, "b": {}}, "'ok', 'any', 'notok' or 'corr'"),
        ({"a": {"command": []}}, "one of command, script and plan, found none"),
        ({"a": {"script": "x.sh"}}, "found command and script"),
        ({"a": {"itmes": ["x"]}}, "unknown key 'jobs.a.itmes'"),
        ({"a": {"time": 10}}, "not a time: write it as text"),
        ({"a": {"retries": {"limit": 1, "backoff": 60}}}, "write it with its unit"),
        ({"a": {"gate": {"file": "../x", "key": "s", "min": 1}}}, "must be a path inside the job's run directory"),
        ({"a": {"items": ["x", "y"], "after": {"b": "corr"}}, "b": {"items": ["x"]}}, "a has 2 items and b has 1"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(jobs: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        graph_of(jobs)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_chained_jobs_go_at_once_with_slurms_own_dependencies() -> None:
    graph = graph_of(
        {"a": {}, "b": {"after": {"a": "ok"}}, "c": {"after": {"b": "any", "a": "notok"}, "singleton": True}}
    )
    decision = decide(graph, manifest_of(), now_s=0.0)
    assert [(w.graph_job, w.after) for w in decision.to_submit] == [
        ("a", ()),
        ("b", (("afterok", "a", -1),)),
        ("c", (("afterany", "b", -1), ("afternotok", "a", -1), ("singleton", "", -1))),
    ]


def test_jobs_behind_a_gate_or_retries_wait_and_then_run_or_are_skipped() -> None:
    gate = {"file": "e.json", "key": "s", "min": 0.5}
    graph = graph_of({"a": {"gate": gate}, "b": {"after": {"a": "ok"}}, "c": {"after": {"b": "ok"}}})
    assert due_jobs(graph, manifest_of()) == [("a", 0, (0,))]
    assert due_jobs(graph, manifest_of(job("a", {0: RUN}))) == []
    assert due_jobs(graph, manifest_of(job("a", {0: OK}))) == [("b", 0, (0,)), ("c", 0, (0,))]
    below = decide(graph, manifest_of(job("a", {0: JobState.BELOW_GATE})), now_s=0.0)
    assert below.skipped == {"b": "a did not succeed", "c": "b did not succeed"}
    assert (below.to_submit, below.is_done) == ((), True)


def test_job_that_slurm_took_out_of_its_queue_counts_as_skipped() -> None:
    graph = graph_of({"a": {}, "rescue": {"after": {"a": "notok"}}})
    gone = job("rescue", {0: JobState.CANCELLED}, number=1)
    assert decide(graph, manifest_of(job("a", {0: OK}), gone), now_s=0.0).skipped == {"rescue": "a succeeded"}
    assert decide(graph, manifest_of(job("a", {0: BAD}), gone), now_s=0.0).skipped == {}, "somebody cancelled it"


def test_failed_items_go_again_alone_after_doubling_waits_up_to_the_limit() -> None:
    items = [str(i) for i in range(4)]
    graph = graph_of({"a": {"items": items, "retries": {"limit": 2, "backoff": "10 s"}}})
    first = job("a", {0: OK, 1: BAD, 2: RUN, 3: JobState.OUT_OF_MEMORY}, ended_s=100.0)
    assert decide(graph, manifest_of(first), now_s=105.0).due_s == 110.0
    assert due_jobs(graph, manifest_of(first), 105.0) == []
    assert due_jobs(graph, manifest_of(first), 110.0) == [("a", 0, (1,))]
    second = replace(job("a", {1: BAD}, number=1, ended_s=200.0), tasks="1")
    assert due_jobs(graph, manifest_of(first, second), 219.0) == []
    assert due_jobs(graph, manifest_of(first, second), 220.0) == [("a", 0, (1,))]
    third = replace(job("a", {1: BAD}, number=2, ended_s=300.0), tasks="1")
    done = first.with_states({0: OK, 1: BAD, 2: OK, 3: JobState.OUT_OF_MEMORY})
    assert decide(graph, manifest_of(done, second, third), now_s=1e9).is_done


@given(backoff=st.floats(1, 100), longest=st.floats(1, 1000), failures=st.integers(1, 30))
def test_waits_grow_and_stay_under_the_longest(backoff: float, longest: float, failures: int) -> None:
    rule = RetryRule(limit=30, backoff_s=backoff, longest_s=longest)
    assert rule.wait_s(failures) <= longest
    assert rule.wait_s(failures + 1) >= rule.wait_s(failures)


def test_item_by_item_only_what_succeeded_goes_on() -> None:
    items = [str(i) for i in range(6)]
    graph = graph_of({
        "a": {"items": items, "retries": {"limit": 1, "backoff": "1 s"}}, "b": {"items": items, "after": {"a": "corr"}},
    })  # fmt: skip
    starved = JobState.OUT_OF_MEMORY
    parts = (job("a", {0: OK, 1: starved, 2: OK, 3: OK}), job("a", {0: starved, 1: OK}, number=1, part=1))
    assert due_jobs(graph, manifest_of(*parts)) == [("b", 0, (0, 2, 3)), ("b", 1, (1,))]


def test_long_sweeps_are_parts_one_after_the_other_so_that_the_cap_holds() -> None:
    graph = graph_of({"a": {"items": [str(i) for i in range(10)]}})
    decision = decide(graph, manifest_of(), now_s=0.0)
    assert [(w.part, w.tasks, w.after) for w in decision.to_submit] == [
        (0, (0, 1, 2, 3), ()),
        (1, (0, 1, 2, 3), (("afterany", "a", 0),)),
        (2, (0, 1), (("afterany", "a", 1),)),
    ]


def test_nothing_is_submitted_for_a_launch_that_was_stopped() -> None:
    graph = graph_of({"a": {}, "b": {"after": {"a": "any"}}})
    decision = decide(graph, manifest_of(job("a", {0: JobState.CANCELLED}), is_stopped=True), now_s=0.0)
    assert (decision.to_submit, decision.is_done) == ((), True)


def test_node_is_left_out_only_where_others_do_better() -> None:
    bad, good = job("a", {0: BAD}, failures={"n1": 2}), job("a", {0: OK}, number=1, successes={"n2": 1})
    assert excluded_nodes(manifest_of(bad, good), 2) == ("n1",)
    assert excluded_nodes(manifest_of(bad, good), 3) == ()
    assert excluded_nodes(manifest_of(bad), 2) == (), "nothing succeeds anywhere: it is the program"
    busy = job("a", {0: OK}, number=1, successes={"n1": 9, "n2": 1})
    assert excluded_nodes(manifest_of(bad, busy), 2) == ()


def test_graph_is_drawn_and_kept() -> None:
    graph = graph_of({"a": {"items": ["x", "y"], "width": 2}, "b": {"after": {"a": "ok"}, "retries": {"limit": 2}}})
    assert outline(graph) == [
        "g: 2 jobs, 3 items",
        "  a: 2 items, 2 at once, 1 nodes x 1 GPUs, 00:10:00",
        "  b: one job, 1 nodes x 1 GPUs, 00:10:00",
        "    afterok a",
        "    up to 2 retries, the first after 60 s",
    ]
    assert '"a" -> "b" [label="ok"];' in dot(graph)
    assert restore(stored(graph), Graph, where="graph.json") == graph
