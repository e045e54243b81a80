"""Ends by the scheduler, by people and by nodes."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import JobFact
from scalewright.observe.findings.ends.ending import Ending, ending_by, names_words, quoted, seen_end
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule

GUIDE = "Infrastructure Foundations for Scalable LLM Training, section 2.4.6: how to respond to states and signals"


def _main_job(evidence: Evidence) -> JobFact | None:
    """The job itself, not one of its steps."""
    return next((job for job in evidence.jobs if "." not in job.job_id), evidence.jobs[0] if evidence.jobs else None)


def _checkpoint_words(ending: Ending) -> str:
    saved = ending.evidence.of_kind("checkpoint_saved")
    at = [one.step for one in saved if one.step is not None]
    last = ending.last_step
    if at and last is not None:
        return f" The last checkpoint is of step {max(at)}: {max(last - max(at), 0)} steps are lost."
    return "" if saved or not ending.evidence.steps else " No checkpoint was saved."


@finding_rule(
    id="time-limit",
    severity="error",
    role="ended",
    title="The job reached its time limit",
    why="Slurm ends a job at its limit: TERM, then KILL after KillWait. What was not saved is lost.",
    advice="Request the time that the rest needs, or save and requeue on the notice before the limit "
    "(#SBATCH --signal=B:USR1@300 with --requeue).",
    source="Slurm, sbatch(1): --time, --signal; " + GUIDE,
)
def time_limit(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "time-limit"):
        job = _main_job(evidence)
        limit = f" of {units.format(job.limit_s, units.SECONDS)}" if job and job.limit_s else ""
        yield seen_end(
            ending,
            f"The job reached its time limit{limit}{ending.when}.{_checkpoint_words(ending)}",
            "give more --time, or add --signal=B:USR1@300 and --requeue so that the run saves and goes on; "
            "`scalewright launch` writes both",
            numbers={"limit_s": job.limit_s} if job and job.limit_s else {},
        )


@finding_rule(
    id="preempted",
    severity="warning",
    role="ended",
    title="The job was preempted",
    why="A job of higher priority took the nodes. Nothing is wrong with the run.",
    advice="Save on TERM and let the job be requeued (--requeue), or use a partition or QoS without preemption.",
    source="Slurm, preemption; " + GUIDE,
)
def preempted(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "preempted"):
        yield seen_end(
            ending,
            f"The scheduler preempted the job{ending.when}.{_checkpoint_words(ending)}",
            "submit with --requeue and save on TERM; treat it as a pause",
        )


@finding_rule(
    id="node-failure",
    severity="error",
    role="ended",
    title="A node failed",
    why="Slurm lost contact with a node, or the node was set down. All ranks on it are gone; the others wait or lose "
    "their connections.",
    advice="Requeue from the last checkpoint without the node (--exclude), and report the node.",
    source="Slurm, sacct(1): NODE_FAIL; " + GUIDE,
)
def node_failure(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "node-failure"):
        nodes = ending.hosts
        name = names_words(nodes) if nodes else "a node"
        exclude = f"--exclude={','.join(nodes)}" if nodes else "--exclude with its name (`scontrol show job`)"
        yield seen_end(
            ending,
            f"The scheduler lost {name}{ending.when}: {quoted(ending.first, most=120)}.{_checkpoint_words(ending)}",
            f"requeue with {exclude}, and tell the site",
        )


@finding_rule(
    id="cancelled",
    severity="warning",
    role="ended",
    title="Somebody cancelled the job",
    why="scancel, by the user or an administrator. If the run stood still before, look for what stopped it.",
    advice="Ask who cancelled it and why; sacct names the user's id.",
    source="Slurm, scancel(1)",
)
def cancelled(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "cancelled"):
        who = str(ending.first.values.get("by", ending.first.values.get("uid", ""))).removesuffix(".0")
        by = f" by user {who}" if who else ""
        yield seen_end(
            ending,
            f"The job was cancelled{by}{ending.when}.{_checkpoint_words(ending)}",
            "nothing has to change, unless the run stood still before",
        )


@finding_rule(
    id="stopped-by-signal",
    severity="info",
    role="ended",
    title="The run was asked to stop and did so",
    why="A signal asked the run to end. It saved after a whole step, so that the same command resumes it.",
    advice="Start it again to resume. USR1 is the notice before the time limit, TERM comes from scancel or "
    "preemption, INT from Ctrl-C.",
    source=GUIDE,
)
def stopped_by_signal(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "stopped-by-signal"):
        yield seen_end(
            ending, f"The run was stopped{ending.when}: {quoted(ending.first)}.", "run the same command again to resume"
        )


@finding_rule(
    id="requeued",
    severity="info",
    role="ended",
    title="The job was queued again",
    why="The scheduler or the job itself put the job back into the queue, after preemption, a lost node or its limit.",
    advice="Check that the next attempt resumes from the last checkpoint and not from step 0.",
    source="Slurm, scontrol(1): requeue",
)
def requeued(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    events = evidence.of_kind("requeued")
    states = [job for job in evidence.jobs if job.state == "REQUEUED"]
    spots = [one.spot for one in events] + [job.spot for job in states]
    if spots:
        loaded = evidence.of_kind("checkpoint_loaded")
        resumed = f"; it resumed from {quoted(loaded[-1], most=80)}" if loaded and loaded[-1].message else ""
        yield Seen(
            message=f"The job was queued again {len(spots)} time{'' if len(spots) == 1 else 's'}{resumed}",
            spots=tuple(spots[:3]), next_step="check that each attempt resumes from a checkpoint", certainty="certain",
        )  # fmt: skip
