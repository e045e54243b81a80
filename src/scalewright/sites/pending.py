"""Why a job of Slurm waits, in plain words, and what helps: the one table of `advise --job` and `explain`."""

from __future__ import annotations

import re
from dataclasses import dataclass

SOURCE = "https://slurm.schedmd.com/job_reason_codes.html"
_NOT_COMPETING = re.compile(
    r"^(JobHeld|Dependency|BeginTime|Assoc|QOS|Max|Invalid|Bad|Partition(Time|Node|Down|Inactive)|Reservation|Deadline"
    r"|JobArrayTaskLimit|AccountNotAllowed|AccountingPolicy|Prolog|Cleaning|launch failed)"
)


def competes(reason: str) -> bool:
    """Whether a job with this reason starts as soon as nodes are free; held jobs and jobs over a limit do not."""
    return not _NOT_COMPETING.match(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One of Slurm's reason codes, or the common start of several."""

    code: str
    meaning: str
    remedy: str
    """What to do; empty: wait, or request less."""
    starts_by_itself: bool = True
    """Whether waiting is enough; if not, somebody has to change the job or the cluster."""

    def next_step(self, job_id: str) -> str:
        """What helps this job."""
        return self.remedy.replace("ID", job_id) or "wait; a shorter --time or more partitions start earlier"


_ROWS = (
    ("Resources", "it is next in the queue, but not enough nodes are free", ""),
    ("Priority", "jobs of higher priority come first", ""),
    ("Nodes required for job are DOWN", "nodes that it needs are down, drained or reserved",
     "remove --nodelist and rare constraints, or wait for the nodes"),
    ("ReqNodeNotAvail", "a node that it names is down, drained or reserved",
     "remove --nodelist, or shorten --time so that the job ends before the reservation"),
    ("Reservation", "its reservation has not started, or is full", "run: scontrol show reservation"),
    ("Dependency", "it waits for another job", "run: squeue -j ID -o %E"),
    ("DependencyNeverSatisfied", "the job that it waits for failed, so it will never run",
     "cancel it and submit it again; with --kill-on-invalid-dep=yes Slurm cancels it by itself"),
    ("JobHeldUser", "its owner holds it", "run: scontrol release ID"),
    ("JobHeldAdmin", "the operators hold it", "ask the operators why"),
    ("BeginTime", "its --begin time has not come, or it was just requeued", "wait, or change --begin"),
    ("JobArrayTaskLimit", "its array already runs as many tasks at once as it allows",
     "raise the number after % with: scontrol update JobId=ID ArrayTaskThrottle=N"),
    ("PartitionTimeLimit", "its --time is over the limit of the partition", "shorten it, or use another partition"),
    ("PartitionNodeLimit", "it requests more nodes than the partition allows",
     "request fewer nodes, or use another partition"),
    ("PartitionDown", "the partition is down and starts no jobs", "use another partition"),
    ("PartitionInactive", "the partition accepts no jobs", "use another partition"),
    ("PartitionConfig", "the request does not fit the partition", "compare it with: scontrol show partition"),
    ("BadConstraints", "no node has what it requests", "change --constraint, --gres or --mem"),
    ("InvalidAccount", "its account does not exist or has expired", "give another --account"),
    ("InvalidQOS", "its QOS does not exist or is not for this account", "give another --qos"),
    ("AccountNotAllowed", "the partition does not accept its account", "use another partition"),
    ("QOSNotAllowed", "the partition does not accept its QOS", "use another QOS or partition"),
    ("QOSMaxWallDurationPerJobLimit", "its --time is over the limit of its QOS", "shorten --time"),
    ("QOSMaxJobsPerUserLimit", "its owner already runs as many jobs as the QOS allows",
     "wait for one of your jobs, or use another QOS"),
    ("QOSGrp", "all users of its QOS together have reached a limit", "use another QOS, or wait"),
    ("QOSMax", "it requests more than its QOS allows for one job or user", "request less, or use another QOS"),
    ("QOSUsageThreshold", "the usage of its QOS is over a threshold", "use another QOS"),
    ("AssocGrpCpuLimit", "its account already uses as many CPUs as it may",
     "wait for other jobs of the account, or request fewer CPUs"),
    ("AssocGrpJobsLimit", "its account already runs as many jobs as it may", "wait for other jobs of the account"),
    ("AssocGrp", "all jobs of its account together have reached a limit, often its GPU-hours",
     "wait for other jobs of the account, or apply for more hours"),
    ("AssocMax", "it requests more than its account allows for one job or user", "request less"),
    ("MaxGRESPerAccount", "its account already uses as many GPUs as it may", "wait for its other jobs"),
    ("Max", "it is over a limit of its QOS per account or user", "request less"),
    ("Licenses", "it waits for a licence", "remove --licenses if the job does not need it"),
    ("Prolog", "its nodes are being prepared", "wait a minute"),
    ("Cleaning", "its last attempt is being cleaned up", "wait a minute"),
    ("BurstBuffer", "its burst buffer is being filled or is full", "request a smaller one"),
    ("launch failed requeued held", "it could not be started and is held",
     "look for bad nodes, then run: scontrol release ID"),
    ("None", "the scheduler has not considered it yet", "wait a minute"),
)  # fmt: skip
_STUCK = (
    "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin", "PartitionTimeLimit", "PartitionNodeLimit",
    "PartitionInactive", "PartitionConfig", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed",
    "QOSNotAllowed", "QOSMaxWallDurationPerJobLimit", "launch failed requeued held",
)  # fmt: skip
"""Codes of jobs that do not start however long one waits."""
REASONS = tuple(
    Reason(code=code, meaning=meaning, remedy=remedy, starts_by_itself=code not in _STUCK)
    for code, meaning, remedy in _ROWS
)


def reason_of(text: str) -> Reason:
    """The entry of REASONS with the longest code that the text starts with."""
    plain = text.strip("()")
    matching = [reason for reason in REASONS if plain.startswith(reason.code)]
    if not matching:
        return Reason(code=plain or "None", meaning="Slurm gives no further reason", remedy=f"see {SOURCE}")
    return max(matching, key=lambda reason: len(reason.code))
