"""Lines of mpirun, MPICH, Composer, DeepSpeed, accelerate and JAX that say how a rank ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from scalewright.observe.evidence.facts import Happening, HappeningKind
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_CODE = re.compile(
    r"(?:Global )?[Rr]ank (?P<rank>\d{1,9}) (?:\(PID \d+\) )?(?:crashed with exit|exited with) code (?P<code>-?\d{1,9})"
    r"|(?:local_rank=(?P<local>\d{1,9}).*)?exits with return code = (?P<returned>-?\d{1,9})"
)
"""Composer, then DeepSpeed, which numbers the ranks of a node."""
_MPIRUN = re.compile(
    r"process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>\S+) exited on signal (?P<signal>\d{1,3})"
)
_MPICH = re.compile(r"RANK (?P<rank>\d{1,9}) PID \d+ RUNNING AT (?P<host>\S+)")
_MPICH_SIGNAL = re.compile(r"KILLED BY SIGNAL: (?P<signal>\d{1,3})|EXIT CODE: (?P<code>\d{1,3})")
_DIED = re.compile(r"died with <Signals\.(?P<signal>SIG\w+): \d+>")
_HEARTBEAT = re.compile(r"/task:(?P<rank>\d{1,9}) heartbeat timeout")


class LauncherReader(LineReader):
    """One happening for each rank that a launcher names."""

    kind: ClassVar[str] = "launcher lines"
    hints: ClassVar[tuple[str, ...]] = (
        "crashed with exit code", "exited with code", "exits with return code", "exited on signal", "RUNNING AT",
        "KILLED BY SIGNAL", "EXIT CODE: ", "died with <Signals", "heartbeat timeout",
    )  # fmt: skip

    def __init__(self) -> None:
        self._named: re.Match[str] | None = None
        """MPICH names the rank in the line above its signal."""
        self._seen: set[tuple[int | None, str]] = set()

    def take(self, line: Line) -> Iterable[Item]:
        for happening in self._of_line(line):
            key = (happening.rank, happening.message[:60])
            if key not in self._seen:
                self._seen.add(key)
                yield happening

    def _of_line(self, line: Line) -> Iterator[Happening]:
        text = line.text
        if match := _CODE.search(text):
            rank = match["rank"]
            yield _ended(line, match[0], rank=int(rank) if rank else None, code=int(match["code"] or match["returned"]))
        elif match := _MPIRUN.search(text):
            yield _ended(line, match[0], rank=int(match["rank"]), host=match["host"], code=-int(match["signal"]))
        elif match := _MPICH.search(text):
            self._named = match
        elif (named := self._named) and (match := _MPICH_SIGNAL.search(text)):
            self._named = None
            code = -int(match["signal"]) if match["signal"] else int(match["code"])
            yield _ended(line, match[0], rank=int(named["rank"]), host=named["host"], code=code)
        elif match := _DIED.search(text):
            yield Happening(
                kind="killed", spot=line.spot, message=match[0], at_s=line.at_s, values={"signal": match["signal"]}
            )
        elif match := _HEARTBEAT.search(text):
            yield Happening(
                kind="killed", spot=line.spot, message=f"task {match['rank']} sent no heartbeat any more",
                at_s=line.at_s, rank=int(match["rank"]),
            )  # fmt: skip


def _ended(line: Line, message: str, *, rank: int | None, code: int, host: str = "") -> Happening:
    values: dict[str, float | str] = {"exit_code": float(code)}
    kind: HappeningKind = "exited"
    if code < 0:
        kind, values["signal"] = "killed", float(-code)
    return Happening(
        kind=kind, spot=line.spot, message=message[:400], at_s=line.at_s, rank=rank, host=host, values=values
    )
