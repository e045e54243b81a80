"""Language training under rendered scripts on a real Slurm: after every fault the losses of an undisturbed run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from training_runs import NUM_STEPS, TrainingRun, ranks_of, signal_ranks
from waiting import limit_job, wait_for

from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm

Reference = list[tuple[int, float]]
NUM_REQUEUES = 5


def check_finished(run: TrainingRun, reference: Reference) -> None:
    """Ended well, every step was done, and the last value of each step's loss is the undisturbed run's, bit for bit."""
    assert run.field("JobState") == "COMPLETED", run.shown()
    end = run.directory.read_exit_info()
    assert end is not None
    assert (end.code, end.reason) == (0, "finished")
    assert run.directory.checkpoint_steps()[-1] == NUM_STEPS
    assert sorted(dict(run.losses()).items()) == reference


def check_stopped_and_resumed(run: TrainingRun, reference: Reference) -> None:
    """Asked to stop, it saved, was queued again once and went on with the very next step: none was done twice."""
    check_finished(run, reference)
    assert run.field("Restarts") == "1", run.shown()
    (resumed,) = run.resumed_at()
    assert 0 < resumed < NUM_STEPS
    assert [step for step, _ in run.losses()] == list(range(NUM_STEPS))
    assert "notice: asking the ranks to save and leave" in run.log()


def be_preempted(lab: Lab, folder: Path) -> TrainingRun:
    pinned = {"nodelist": f"{lab.nodes[0]},{lab.nodes[1]}"}
    run = TrainingRun.submit(lab, folder, qos="low", directives=pinned)
    run.hold()
    urgent = ["--qos=high", "--gpus-per-node=2", "--nodelist", lab.nodes[1], "--output=/dev/null", "--wrap", "sleep 2"]
    done = lab.run("sbatch", "--parsable", *urgent)
    assert done.returncode == 0, done.stderr
    wait_for("the notice", lambda: "notice: asking" in run.log(), shown=run.shown)
    run.release()
    return run.finish()


def run_out_of_time(lab: Lab, folder: Path) -> TrainingRun:
    run = TrainingRun.submit(lab, folder, launcher="torchrun", notice_s=180)
    run.hold()
    limit_job(lab, run.job, minutes_left=3)
    wait_for("the notice", lambda: "notice: asking" in run.log(), shown=run.shown)
    limit_job(lab, run.job, minutes_left=15)  # before it can be queued again: the second start is not to be short
    run.release()
    wait_for("the requeue", lambda: run.field("Restarts") == "1", shown=run.shown)
    return run.finish()


def lose_a_node(lab: Lab, folder: Path) -> TrainingRun:
    """Not the first node, where the script runs: that one's end is Slurm's to see, this one's the ranks see first."""
    run = TrainingRun.submit(lab, folder, directives={"exclude": lab.nodes[0]})
    run.hold()
    lost = run.nodes()[-1]
    assert lost == lab.nodes[3], "the other runs use the other nodes"
    lab.kill_node(lost)
    run.release()
    try:
        run.finish()
        assert lost not in run.nodes(), run.shown()
    finally:
        lab.start_node(lost)
    return run


def hang_for_good(lab: Lab, folder: Path) -> TrainingRun:
    """One rank is stopped for ever: the other's watchdog leaves with 75, srun kills the frozen one and says 137."""
    run = TrainingRun.submit(lab, folder, variables={"OMP_NUM_THREADS": "1", "SCALEWRIGHT_WATCHDOG_S": "8"})
    run.hold()
    for pid in ranks_of(run.directory)[:-1]:
        os.kill(pid, signal.SIGCONT)
    wait_for("the requeue", lambda: run.field("Restarts") != "0", shown=run.shown)
    return run.finish()


def be_cancelled_on_a_drained_node(lab: Lab, folder: Path) -> TrainingRun:
    """Drained, it goes on; cancelled, it saves and is not queued again; its script, submitted again, resumes."""
    run = TrainingRun.submit(lab, folder)
    run.hold()
    drained, before = run.nodes()[0], run.last_step()
    lab.run("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
    try:
        run.release()
        wait_for("a step on a drained node", lambda: run.last_step() > before, shown=run.shown)
    finally:
        lab.run("scontrol", "update", f"NodeName={drained}", "State=RESUME")
    lab.run("scancel", run.job)
    run.finish()
    if run.field("JobState") == "COMPLETED":
        return run  # it was faster
    assert run.field("JobState") == "CANCELLED", run.shown()
    assert run.field("Restarts") == "0", run.shown()
    return run.again().finish()


def be_requeued_again_and_again(lab: Lab, folder: Path) -> TrainingRun:
    """Each time as soon as it has resumed, and stopped until Slurm ends it: nothing is saved on the way out."""
    run = TrainingRun.submit(lab, folder)
    run.hold()
    for number in range(1, NUM_REQUEUES + 1):
        done = lab.run("scontrol", "requeue", run.job)
        assert done.returncode == 0, done.stderr
        wait_for("the next start", lambda number=number: len(run.resumed_at()) >= number, shown=run.shown)
        if number < NUM_REQUEUES:
            signal_ranks(run.directory, signal.SIGSTOP)
    return run.finish()


AT_ONCE = (be_preempted, run_out_of_time, lose_a_node)
LATER = (hang_for_good, be_cancelled_on_a_drained_node, be_requeued_again_and_again)


@pytest.fixture(scope="module")
def through_torchrun(slurm: Lab, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return TrainingRun.submit(slurm, tmp_path_factory.mktemp("torchrun") / "run", launcher="torchrun")


@pytest.fixture(scope="module")
def reference(slurm: Lab, tmp_path_factory: pytest.TempPathFactory, through_torchrun: TrainingRun) -> Reference:
    """Through srun, with nothing in its way; the run through torchrun waits for it half done."""
    run = TrainingRun.submit(slurm, tmp_path_factory.mktemp("reference") / "run")
    through_torchrun.hold()
    losses = run.finish().losses()
    assert [step for step, _ in losses] == list(range(NUM_STEPS)), run.shown()
    assert len({loss for _, loss in losses}) > NUM_STEPS // 2, "a loss that stands still proves nothing"
    return losses


@pytest.fixture(scope="module")
def disturbed(
    slurm: Lab, tmp_path_factory: pytest.TempPathFactory, through_torchrun: TrainingRun, reference: Reference
) -> Iterator[dict[str, Future[TrainingRun]]]:
    """All faults at once, because most of their time is waiting for Slurm's timers. They need the nodes that the run
    through torchrun holds, if the test that lets it go on was not asked for."""
    through_torchrun.release()
    through_torchrun.finish()
    with ThreadPoolExecutor() as pool:
        runs = {fault.__name__: tmp_path_factory.mktemp(fault.__name__) / "run" for fault in (*AT_ONCE, *LATER)}
        futures = {fault.__name__: pool.submit(fault, slurm, runs[fault.__name__]) for fault in AT_ONCE}

        def later(fault: Callable[[Lab, Path], TrainingRun]) -> TrainingRun:
            futures["be_preempted"].exception()  # it is preempted once, by the job that is to do that
            return fault(slurm, runs[fault.__name__])

        yield futures | {fault.__name__: pool.submit(later, fault) for fault in LATER}


def test_training_goes_on_while_the_controller_is_away(
    slurm: Lab, through_torchrun: TrainingRun, reference: Reference
) -> None:
    run, before = through_torchrun, through_torchrun.last_step()
    slurm.stop_controller()
    try:
        run.release()
        wait_for("steps without a controller", lambda: run.last_step() > before + 1, shown=run.shown)
    finally:
        slurm.start_controller()
    check_finished(run.finish(), reference)
    assert run.field("Restarts") == "0"
    assert [step for step, _ in run.losses()] == list(range(NUM_STEPS))


def test_preemption_by_qos(disturbed: dict[str, Future[TrainingRun]], reference: Reference) -> None:
    check_stopped_and_resumed(disturbed["be_preempted"].result(), reference)


def test_time_limit_under_torchrun(disturbed: dict[str, Future[TrainingRun]], reference: Reference) -> None:
    check_stopped_and_resumed(disturbed["run_out_of_time"].result(), reference)


def test_lost_node(disturbed: dict[str, Future[TrainingRun]], reference: Reference) -> None:
    """It goes on from its last checkpoint on other nodes; what was done since is done again, with the same losses."""
    run = disturbed["lose_a_node"].result()
    check_finished(run, reference)
    assert run.field("Restarts") != "0", run.shown()
    assert run.resumed_at(), run.shown()
    assert set(run.losses()) == set(reference)


def test_a_rank_that_hangs_for_good(disturbed: dict[str, Future[TrainingRun]], reference: Reference) -> None:
    """The job is queued again for what the watchdog recorded, not failed for the code of the rank that srun killed."""
    run = disturbed["hang_for_good"].result()
    check_finished(run, reference)
    assert run.field("Restarts") != "0", run.shown()
    assert "no step for" in run.log(), run.shown()
    assert set(run.losses()) == set(reference)


def test_cancelled_on_a_drained_node(disturbed: dict[str, Future[TrainingRun]], reference: Reference) -> None:
    check_finished(disturbed["be_cancelled_on_a_drained_node"].result(), reference)


def test_five_requeues_in_a_row(disturbed: dict[str, Future[TrainingRun]], reference: Reference) -> None:
    run = disturbed["be_requeued_again_and_again"].result()
    check_finished(run, reference)
    assert int(run.field("Restarts")) >= NUM_REQUEUES, run.shown()
    assert len(run.resumed_at()) >= NUM_REQUEUES, run.shown()
    assert set(run.losses()) == set(reference)
