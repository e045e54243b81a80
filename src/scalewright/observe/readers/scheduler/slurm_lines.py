"""Lines that slurmstepd, srun and the job's shell write into a log: why a job or a task ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from scalewright.observe.evidence.facts import Happening, HappeningKind
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line
from scalewright.records.node_list import expand_nodes

_CANCELLED = re.compile(
    r"\*\*\* (?P<what>JOB|STEP|REQUEUE)\D*(?P<id>\d[\w.+]*) ON (?P<host>\S+) (?:CANCELLED|FAILED|ENDED|REQUEUED)?"
    r"\s*(?:AT (?P<at>[\dT:-]+))?\s*(?P<why>(?:DUE TO|WITH) [^*]+?)?(?:\s*\*\*\*|$)"
)
_TASK = re.compile(
    r"(?:srun: )?error: (?P<hosts>[\w\[\],.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$"
)  # srun: error: n[1-2]: tasks 0-3: Exited with exit code 1
_CODE = re.compile(r"[Ee]xited with exit code (-?\d{1,15})")
_OOM = re.compile(r"(?:Detected (\d{1,15}) )?oom[-_]kill event(?:\(?s?\)?)?|[Ee]xceeded (?:(?:job|step) )?memory limit")
_SCRIPT = re.compile(
    r"(?P<script>\S+): line \d+:\s+(?P<pid>\d{1,15})"
    r" (?P<how>Killed|Terminated|Segmentation fault|Bus error|Aborted|Illegal instruction)(?P<rest>.*)"
)
_NOT_THERE = re.compile(r"(?P<script>\S+): line \d+: (?P<path>\S+): (?:command not found|No such file or directory)")
_EXECVE = re.compile(r"execve\(\): (?:\S+: )?(?P<path>[^:]+): (?P<why>No such file or directory|Permission denied)")
_NODE = re.compile(
    r"[Nn]ode failure on (?P<hosts>\S+)|NODE_FAIL|slurmstepd.*lost connection"
    r"|Node (?P<host>\S+) (?:has failed|not responding)"
)
_SIGNALS = {
    "Killed": 9, "Terminated": 15, "Segmentation fault": 11, "Bus error": 7, "Aborted": 6, "Illegal instruction": 4,
    "Floating point exception": 8, "Hangup": 1, "Interrupt": 2, "Out Of Memory": 9,
}  # fmt: skip
_REFUSED = re.compile(
    r"(?:sbatch|srun|salloc): error: (?P<why>.*(?:Unable to create step|Invalid|not available|More processors"
    r"|Batch job submission failed|Unable to allocate|cannot be satisfied|Requested node configuration|violates).*)"
)
MOST_TASKS = 64


class SlurmLineReader(LineReader):
    """One happening for each job, task or kill that a line names."""

    kind: ClassVar[str] = "slurm lines"
    hints: ClassVar[tuple[str, ...]] = (
        "slurmstepd", "srun: ", "sbatch: error", "salloc: error", "slurm_script: line", ".sh: line", "CANCELLED AT",
        "oom_kill", "oom-kill event", "scancel", ".sbatch: line", ".slurm: line", "bash: line", "Killed",
    )  # fmt: skip

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()

    def take(self, line: Line) -> Iterable[Item]:
        for happening in self._of_line(line):
            key = (happening.kind, happening.host, happening.rank, happening.message)
            if key not in self._seen:
                self._seen.add(key)
                yield happening

    def _of_line(self, line: Line) -> Iterator[Happening]:
        text = line.message or line.text
        text = text if "***" in text or "error" in text or "line" in text else line.raw
        if match := _CANCELLED.search(text):
            yield _ended(line, match, text)
        elif match := _TASK.search(text):
            yield from _tasks(line, match)
        elif match := _OOM.search(text):
            values: dict[str, float | str] = {"num_kills": float(match[1])} if match[1] else {}
            yield Happening(kind="cgroup_kill", spot=line.spot, message=_plain(text), at_s=line.at_s, values=values)
        elif match := _SCRIPT.search(text):
            signal = _SIGNALS[match["how"]]
            yield Happening(
                kind="killed", spot=line.spot, message=f"{match['how']}{match['rest'].rstrip()}", at_s=line.at_s,
                rank=line.rank, host=line.host, values={"signal": float(signal), "pid": float(match["pid"])},
            )  # fmt: skip
        elif match := _NOT_THERE.search(text) or _EXECVE.search(text):
            is_denied = "Permission denied" in text
            yield Happening(
                kind="access_denied" if is_denied else "missing_file", spot=line.spot, message=_plain(text),
                at_s=line.at_s, values={"path": match["path"].strip()},
            )  # fmt: skip
        elif re.fullmatch(r"\s*Killed\s*", text):
            yield Happening(
                kind="killed", spot=line.spot, message="Killed", at_s=line.at_s, rank=line.rank, host=line.host,
                values={"signal": 9.0},
            )  # fmt: skip
        elif match := _NODE.search(text):
            host = match["hosts"] or match["host"] or ""
            yield Happening(kind="node_failed", spot=line.spot, message=_plain(text), at_s=line.at_s, host=host)
        elif match := _REFUSED.search(text):
            yield Happening(kind="bad_configuration", spot=line.spot, message=match["why"], at_s=line.at_s)
        elif "Job step aborted" in text or "terminating step" in text.lower() or "Terminating job step" in text:
            yield Happening(kind="signal", spot=line.spot, message=_plain(text), at_s=line.at_s)


def _plain(text: str) -> str:
    return re.sub(r"^.*?(?:slurmstepd|srun|sbatch|salloc)(?:-\S+)?: (?:error: )?", "", text).strip()[:400]


def _ended(line: Line, match: re.Match[str], text: str) -> Happening:
    why = (match["why"] or "").upper()
    kind: HappeningKind = "cancelled"
    if "TIME LIMIT" in why:
        kind = "time_limit"
    elif "PREEMPT" in why:
        kind = "preempted"
    elif "NODE FAIL" in why:
        kind = "node_failed"
    elif "REQUEUE" in why or match["what"] == "REQUEUE":
        kind = "requeued"
    elif "OUT OF MEMORY" in why or "OOM" in why:
        kind = "cgroup_kill"
    from scalewright.observe.readers.prefixes import time_in

    return Happening(
        kind=kind, spot=line.spot, message=_plain(text), at_s=time_in(match["at"] or "") or line.at_s,
        host=match["host"], values={"job_id": match["id"].rstrip("."), "of": match["what"].lower()},
    )  # fmt: skip


def _tasks(line: Line, match: re.Match[str]) -> Iterator[Happening]:
    how = match["how"].strip()
    word = next((word for word in _SIGNALS if how.startswith(word)), "")
    code = _CODE.search(how)
    values: dict[str, float | str] = {}
    if code:
        values["exit_code"] = float(code[1])
    if word:
        values["signal"] = float(_SIGNALS[word])
    kind: HappeningKind = "cgroup_kill" if how.startswith("Out Of Memory") else "killed" if word else "exited"
    hosts = expand_nodes(match["hosts"])
    tasks = _numbers(match["tasks"])
    for task in tasks[:MOST_TASKS]:
        yield Happening(
            kind=kind, spot=line.spot, message=how, at_s=line.at_s, rank=task,
            host=hosts[0] if len(hosts) == 1 else "", values=values,
        )  # fmt: skip


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if re.fullmatch(r"[0-9]{1,9}", low) and re.fullmatch(r"[0-9]{0,9}", high):
            numbers += range(int(low), min(int(high or low), int(low) + MOST_TASKS) + 1)
    return numbers
