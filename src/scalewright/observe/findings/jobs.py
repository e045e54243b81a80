"""What the scheduler accounts for: time in the queue, and time that was reserved and not used."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, seconds

PADDED_FACTOR = 3.0
"""A limit of so many times the elapsed time keeps a job from being backfilled."""
LEAST_LIMIT_S = units.HOUR_S
QUEUED_FACTOR = 2.0
LEAST_QUEUED_S = 600.0


@finding_rule(
    id="walltime-padded",
    severity="info",
    role="wasted",
    title="The time limit is much longer than the job",
    why="A scheduler fills gaps with jobs that are short enough. A limit far above the real time makes a job wait "
    "longer.",
    advice="Set the limit to the expected time plus a fifth, and save on the signal before it (--signal=B:USR1@120).",
    source="Mu'alem and Feitelson 2001 (IEEE TPDS 12): estimates and backfilling",
)
def walltime_padded(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    for job in evidence.jobs:
        if job.state != "COMPLETED" or not job.limit_s or not job.elapsed_s or job.limit_s < LEAST_LIMIT_S:
            continue
        if job.limit_s >= PADDED_FACTOR * job.elapsed_s and "." not in job.job_id:
            limit, used = seconds(job.limit_s), seconds(job.elapsed_s)
            yield Seen(
                message=f"job {job.job_id} asked for {limit} and ran {used}", spots=(job.spot,), certainty="certain",
                next_step=f"ask for {seconds(1.2 * job.elapsed_s)}", score=1.0 - job.elapsed_s / job.limit_s,
                numbers={"limit_s": job.limit_s, "elapsed_s": job.elapsed_s},
            )  # fmt: skip
            return


@finding_rule(
    id="queue-wait",
    severity="info",
    role="wasted",
    title="The job waited longer than it ran",
    why="Time to the result is queue plus run. Many short jobs, large shapes and long limits wait longest.",
    advice="Ask for fewer nodes or a shorter limit, join short jobs in one, or use another partition. `scalewright "
    "advise` compares shapes for a site.",
    source="The guide on HPC for AI, section on jobs that stay pending",
)
def queue_wait(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    for job in evidence.jobs:
        if "." in job.job_id or job.submitted_at_s is None or job.started_at_s is None or not job.elapsed_s:
            continue
        queued_s = job.started_at_s - job.submitted_at_s
        if queued_s < max(QUEUED_FACTOR * job.elapsed_s, LEAST_QUEUED_S):
            continue
        share = queued_s / (queued_s + job.elapsed_s)
        yield Seen(
            message=f"job {job.job_id} waited {seconds(queued_s)} in the queue and ran {seconds(job.elapsed_s)}",
            spots=(job.spot,), certainty="certain", score=share, numbers={"queued_s": queued_s},
            next_step="ask for fewer nodes or a shorter time limit; `scalewright advise` compares shapes",
            gain=Gain(step_time_frac=share, how=f"at most: {percent(share)} of the time to the result is the queue"),
        )  # fmt: skip
        return
