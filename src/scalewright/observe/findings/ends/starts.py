"""Ends at the start: ranks that share a device, do not meet, are started twice, or never start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import JobFact, Spot
from scalewright.observe.findings.ends.ending import ending_by, quoted, ranks_words, seen_end
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule
from scalewright.observe.timeline import build_timeline
from scalewright.sites.pending import Reason, reason_of

CHEAT_SHEET = "Infrastructure Foundations for Scalable LLM Training, section 2.4.8, troubleshooting table"


@finding_rule(
    id="ranks-share-device",
    severity="error",
    role="ended",
    title="Two ranks use one GPU",
    why="Without a binding, every rank of a node takes device 0, or two launchers start twice as many ranks as there "
    "are GPUs. NCCL refuses a communicator with two ranks on one device; without NCCL both run at half speed.",
    advice="Bind one GPU to each rank (srun --gpus-per-task=1 --gpu-bind=single:1, or set_device(LOCAL_RANK)), "
    "and start ranks with one launcher only.",
    source=CHEAT_SHEET,
)
def ranks_share_device(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "ranks-share-device"):
        yield seen_end(
            ending,
            f"Two ranks took the same device: {quoted(ending.first)}",
            "use srun --gpus-per-task=1 --gpu-bind=single:1, or set the device from LOCAL_RANK",
        )
        return
    by_device: dict[tuple[str, str], dict[int, Spot]] = defaultdict(dict)
    for one in evidence.happenings:
        device = str(one.values.get("device_uuid", one.values.get("bus_id", "")))
        if one.rank is not None and device and one.kind in ("started", "configured"):
            by_device[one.host, device][one.rank] = one.spot
    for (host, device), ranks in by_device.items():
        if len(ranks) > 1:
            yield Seen(
                message=f"{ranks_words(tuple(ranks)).capitalize()} use the same device {device}"
                f"{f' on {host}' if host else ''}",
                spots=tuple(ranks.values())[:3],
                next_step="use srun --gpus-per-task=1 --gpu-bind=single:1, or set the device from LOCAL_RANK",
                certainty="certain", score=0.9, ranks=tuple(sorted(ranks)),
            )  # fmt: skip


@finding_rule(
    id="device-not-visible",
    severity="error",
    role="ended",
    title="A rank found no device of its own",
    why="The job has no GPU, fewer GPUs than ranks on a node, or CUDA_VISIBLE_DEVICES hides them. A rank that asks for "
    "device LOCAL_RANK then asks for one that is not there. A driver that is not loaded looks the same.",
    advice="Request the GPUs (--gpus-per-node or --gres), start one rank per GPU, and print nvidia-smi -L in the job. "
    "With --gpus-per-task=1 every task sees one device, number 0.",
    source=CHEAT_SHEET,
)
def device_not_visible(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "device-not-visible"):
        is_ordinal = "ordinal" in ending.first.message
        yield seen_end(
            ending,
            f"{ending.who} found no device of its own: {quoted(ending.first)}",
            "start as many ranks as the node shows GPUs (nvidia-smi -L in the job), or use device 0 where each task "
            "sees one"
            if is_ordinal
            else "request GPUs (--gpus-per-node), check CUDA_VISIBLE_DEVICES, and run nvidia-smi -L in the job",
        )


@finding_rule(
    id="double-launch",
    severity="error",
    role="ended",
    title="The ranks were started twice",
    why="srun starts a task per rank and torchrun or mpirun starts all ranks again in each of them, or an earlier run "
    "still holds the port. The second start finds its address in use, or each task believes it is alone.",
    advice="Use one launcher: srun with a task per GPU, or torchrun with one task per node "
    "(--ntasks-per-node=1). Choose MASTER_PORT by job id.",
    source=CHEAT_SHEET,
)
def double_launch(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "double-launch"):
        yield seen_end(
            ending,
            f"{ending.who} could not listen, because the address is in use: {quoted(ending.first)}",
            "start ranks with one launcher (torchrun: --ntasks-per-node=1), end leftovers of the last run, "
            "and set MASTER_PORT by job id",
        )
        return
    variables = evidence.environment
    tasks, world = variables.get("SLURM_NTASKS", ""), variables.get("WORLD_SIZE", "")
    num_gpus = max((job.num_gpus for job in evidence.jobs if job.num_gpus), default=0)
    spot = Spot(file=evidence.sources[0].file if evidence.sources else evidence.run_dir)
    if tasks.isdigit() and world == "1" and int(tasks) > 1:
        yield Seen(
            message=f"Slurm started {tasks} tasks, but each believes that it is alone (WORLD_SIZE=1)",
            spots=(spot,), certainty="likely", score=0.9,
            next_step="set RANK from SLURM_PROCID and WORLD_SIZE from SLURM_NTASKS, or use torchrun, one task per node",
        )  # fmt: skip
    elif world.isdigit() and num_gpus and int(world) >= 2 * num_gpus:
        yield Seen(
            message=f"{world} ranks run on {num_gpus} GPUs: srun and torchrun both started them",
            spots=(evidence.jobs[0].spot,), certainty="likely", score=0.9,
            next_step="use one launcher: torchrun with --ntasks-per-node=1, or srun with one task per GPU",
        )  # fmt: skip


@finding_rule(
    id="rendezvous-refused",
    severity="error",
    role="ended",
    title="Ranks did not find each other at the start",
    why="The rank that the others connect to was not there: MASTER_ADDR or MASTER_PORT is wrong or differs between "
    "nodes, a firewall closes the port, the name does not resolve, or that rank failed first.",
    advice="Set MASTER_ADDR to the first host of the allocation (scontrol show hostnames) for all ranks, use a high "
    "free port, and look at the log of rank 0 first.",
    source=CHEAT_SHEET + "; PyTorch, torchrun: rendezvous",
)
def rendezvous_refused(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "rendezvous-refused"):
        address = evidence.environment.get("MASTER_ADDR", "")
        yield seen_end(
            ending,
            f"{ending.who} could not connect to the other ranks: {quoted(ending.first)}",
            f"check MASTER_ADDR{f' (it is {address})' if address else ''} and MASTER_PORT, and the log of rank 0",
        )


@finding_rule(
    id="never-started",
    severity="warning",
    role="ended",
    title="The run made no step",
    why="There are files of the run, but not a single step, and no error that was understood.",
    advice="Look at the job's state and its output file. Jobs that end within seconds often lack a module, a "
    "container, a path or a free license of the queue.",
    source="Infrastructure Foundations for Scalable LLM Training, section 2.4.6: PENDING",
)
def never_started(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    if (
        evidence.steps
        or evidence.rank_times
        or evidence.collectives
        or not context.ended
        or build_timeline(evidence).cause
    ):
        return
    if any(one.kind == "finished" for one in evidence.happenings) or any(
        name.startswith("measured.") for name in evidence.settings
    ):
        return
    waiting = [job for job in evidence.jobs if job.state in ("PENDING", "CONFIGURING", "REQUEUED")]
    failed = [
        job for job in evidence.jobs if job.state in ("FAILED", "BOOT_FAIL", "LAUNCH_FAILED") and "." not in job.job_id
    ]
    if waiting:
        yield from _waiting(waiting)
    elif failed:
        job = failed[0]
        after = f" after {units.format(job.elapsed_s, units.SECONDS)}" if job.elapsed_s is not None else ""
        code = f" with exit code {job.exit_code}" if job.exit_code is not None else ""
        yield Seen(
            message=f"Job {job.job_id} ended{after}{code}, and no step was read",
            spots=(job.spot,), certainty="likely", score=0.8,
            next_step="add the job's output file (StdOut of `scontrol show job`)",
        )  # fmt: skip
    elif evidence.run_dir:
        yield Seen(
            message="The run directory has a configuration, but no rank wrote a step or how it ended",
            spots=(Spot(file=evidence.run_dir),), certainty="likely", score=0.8,
            next_step="start it again; if it ends at once, read logs/rank-0.log and script.sh",
        )  # fmt: skip


MOST_JOBS_NAMED = 12


def _waiting(jobs: list[JobFact]) -> Iterator[Seen]:
    """Every job that waits, together with those that wait for the same reason; first those that never start."""
    by_reason: dict[Reason, list[JobFact]] = defaultdict(list)
    for job in jobs:
        by_reason[reason_of("Prolog" if job.state == "CONFIGURING" else job.reason)].append(job)
    for reason, alike in sorted(by_reason.items(), key=lambda item: item[0].starts_by_itself):
        ids = [job.job_id for job in alike]
        named = ", ".join(ids[:MOST_JOBS_NAMED]) + (
            f" and {len(ids) - MOST_JOBS_NAMED} more" if ids[MOST_JOBS_NAMED:] else ""
        )
        code = f" ({alike[0].reason})" if alike[0].reason else ""
        who = f"Job {named} waits" if len(ids) == 1 else f"Jobs {named} wait"
        yield Seen(
            message=f"{who}{code}: {reason.meaning}",
            spots=tuple(job.spot for job in alike[:MOST_JOBS_NAMED]), certainty="certain",
            score=0.8 if reason.starts_by_itself else 0.9,
            severity="info" if reason.starts_by_itself else "warning",
            next_step=reason.next_step(",".join(ids[:MOST_JOBS_NAMED])),
        )  # fmt: skip
