"""Tables of sacct and squeue, and the pages of scontrol and seff: what was requested, used, and how a job ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from scalewright.observe.evidence.facts import JobFact, Spot
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.scheduler.job_fields import duration_s, job_fact, plain_state, size_bytes
from scalewright.observe.readers.source import Line

_BY = re.compile(r"CANCELLED by (\d{1,15})")
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(\S*)")
_SEFF = re.compile(r"^(?P<name>[A-Z][\w /()-]*?): (?P<value>.+)$")
_EFFICIENCY = re.compile(r"([\d.]+)% of ([\d.]+ ?[KMGTP]?B)")
MOST_JOBS = 100_000


class JobTableReader(LineReader):
    """A header names the columns. Steps are folded into their job: the largest memory of a task counts."""

    kind: ClassVar[str] = "slurm jobs"
    hints: ClassVar[tuple[str, ...]] = ("JobID", "JOBID", "JobId=", "Job ID: ", "JobIDRaw")

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._separator: str | None = None
        self._widths: list[tuple[int, int]] = []
        self._jobs: dict[str, JobFact] = {}
        self._by: dict[str, str] = {}
        self._block: dict[str, str] = {}
        self._spot: Spot | None = None
        self._mode = ""

    def take(self, line: Line) -> Iterable[Item]:
        text = line.text.rstrip()
        if text.startswith("JobId=") or " JobId=" in text[:40]:
            yield from self._flushed()
            self._begin_block(line, "scontrol")
        elif text.startswith("Job ID: "):
            yield from self._flushed()
            self._begin_block(line, "seff")
        elif self._is_header(text):
            yield from self._flushed()
            self._begin_table(text)
            return
        if self._mode == "table":
            yield from self._row(line, text)
        elif self._mode == "scontrol":
            yield from self._scontrol(text)
        elif self._mode == "seff":
            yield from self._seff(text)
        self.is_open = bool(self._mode)

    def end(self) -> Iterable[Item]:
        return self._flushed()

    @staticmethod
    def _is_header(text: str) -> bool:
        words = set(re.split(r"[|\s]+", text.lower()))
        return bool(words & {"jobid", "jobidraw"}) and bool(words & {"state", "st", "exitcode", "nodelist(reason)"})

    def _begin_table(self, text: str) -> None:
        self._separator = "|" if "|" in text else None
        names = text.strip("|").split("|") if self._separator else text.split()
        self._columns = [name.strip().lower() for name in names]
        self._widths, self._mode, self.is_open = [], "table", True

    def _begin_block(self, line: Line, mode: str) -> None:
        self._block, self._spot, self._mode, self.is_open = {}, line.spot, mode, True

    # ------------------------------------------------------------------ tables
    def _row(self, line: Line, text: str) -> Iterator[Item]:
        if re.fullmatch(r"[-\s]+", text) and "-" in text:
            self._widths = [match.span() for match in re.finditer(r"-+", text)]
            return
        cells = self._cells(text)
        fields = dict(zip(self._columns, cells, strict=False))
        job = job_fact(fields, line.spot) if len(cells) >= 3 else None
        if job is None:
            yield from self._flushed()
            return
        if by := _BY.search(text):
            self._by[job.job_id.split(".")[0]] = by[1]
        self._fold(job)

    def _cells(self, text: str) -> list[str]:
        if self._separator:
            return text.rstrip("|").split("|") if len(text.split("|")) >= 3 else []
        if self._widths:
            return [text[start:end].strip() for start, end in self._widths]
        return text.split(None, len(self._columns) - 1)

    def _fold(self, job: JobFact) -> None:
        """A step gives its job what only steps know."""
        main = job.job_id.split(".")[0]
        known = self._jobs.get(main)
        if known is None:
            if len(self._jobs) < MOST_JOBS:
                self._jobs[main] = replace(job, job_id=main)
            return
        peaks = [one for one in (known.peak_memory_bytes, job.peak_memory_bytes) if one is not None]
        is_oom = job.state == "OUT_OF_MEMORY" and known.state in ("FAILED", "CANCELLED", "")
        self._jobs[main] = replace(
            known,
            peak_memory_bytes=max(peaks) if peaks else None,
            state="OUT_OF_MEMORY" if is_oom else known.state,
            num_tasks=known.num_tasks or job.num_tasks,
            cpu_time_s=known.cpu_time_s or job.cpu_time_s,
        )

    # ------------------------------------------------------------------ pages
    def _scontrol(self, text: str) -> Iterator[Item]:
        pairs = _PAIR.findall(text)
        if not pairs and text.strip():
            yield from self._flushed()
            return
        for name, value in pairs:
            self._block.setdefault(name.lower(), value)

    def _seff(self, text: str) -> Iterator[Item]:
        match = _SEFF.match(text)
        if match is None:
            yield from self._flushed()
            return
        self._block[match["name"].lower()] = match["value"].strip()

    def _seff_fact(self, spot: Spot) -> JobFact | None:
        block = self._block
        state = re.match(r"(?P<state>[A-Z_]+)(?:.*\(exit code (?P<code>\d{1,15})\))?", block.get("state", ""))
        cores = re.match(r"\d{1,9}", block.get("cores", block.get("cores per node", "")))
        num_nodes = re.match(r"\d{1,9}", block.get("nodes", "1"))
        requested = _EFFICIENCY.search(block.get("memory efficiency", ""))
        used = re.match(r"[\d.]+ ?[KMGTP]?B", block.get("memory utilized", ""))
        if not re.match(r"^\d", block.get("job id", "")):
            return None
        nodes = int(num_nodes[0]) if num_nodes else 1
        return JobFact(
            job_id=block["job id"].split()[0], spot=spot, state=plain_state(state["state"]) if state else "",
            exit_code=int(state["code"]) if state and state["code"] else None, num_nodes=nodes,
            num_cpus=int(cores[0]) * (nodes if "cores per node" in block else 1) if cores else None,
            cpu_time_s=duration_s(block.get("cpu utilized", "")),
            elapsed_s=duration_s(block.get("job wall-clock time", "")),
            requested_memory_bytes=size_bytes(requested[2]) if requested else None,
            peak_memory_bytes=size_bytes(used[0]) if used else None,
        )  # fmt: skip

    def _scontrol_fact(self, spot: Spot) -> JobFact | None:
        block = dict(self._block)
        array = block.get("arrayjobid", ""), block.get("arraytaskid", "")
        if all(array) and array[1].isdecimal():
            block["jobid"] = f"{array[0]}_{array[1]}"
        return job_fact(block, spot)

    def _flushed(self) -> Iterator[Item]:
        """The jobs of a table or page that ended."""
        jobs = list(self._jobs.values())
        if self._spot is not None and self._block:
            page = self._scontrol_fact(self._spot) if self._mode == "scontrol" else self._seff_fact(self._spot)
            jobs += [page] if page else []
        by, self._by = self._by, {}
        self._jobs, self._block, self._spot, self._mode, self.is_open = {}, {}, None, "", False
        for job in jobs:
            yield replace(job, reason=f"by user {by[job.job_id]}") if job.job_id in by and not job.reason else job
