"""Kernel messages (dmesg, journal, syslog): errors of GPUs and switches, the OOM killer, blocked tasks, lost links."""

from __future__ import annotations

import calendar
import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from scalewright import units
from scalewright.observe.evidence.facts import Happening, HappeningKind
from scalewright.observe.readers.devices.xid import XIDS
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_XID = re.compile(r"NVRM: (?:GPU at )?Xid \((?:PCI:)?(?P<bus>[\w:.]+)\): (?P<number>\d{1,15})(?:,\s*(?P<rest>.*))?")
_SXID = re.compile(r"SXid \((?:PCI:)?(?P<bus>[\w:.]+)\): (?P<number>\d{1,15}),?\s*(?P<rest>.*)")
_PID = re.compile(r"pid='?(\d{1,15})'?(?:, name=(\S+?),)?")
_KILLED = re.compile(
    r"(?P<scope>Memory cgroup out of memory|Out of memory)(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process"
    r" (?P<pid>\d{1,15}) \((?P<name>[^)]*)\)(?P<rest>.*)"
)
_RSS = re.compile(r"anon-rss:(\d{1,15})kB")
_TOTAL = re.compile(r"total-vm:(\d{1,15})kB")
_CLOCK = re.compile(r"^\[(?P<day>[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4})\]")
_UPTIME = re.compile(r"^\s*(?:<\d+>)?\[\s*(?P<since>\d+\.\d+)\]")
_SYSLOG = re.compile(r"^(?P<month>[A-Z][a-z]{2}) +\d+ \d\d:\d\d:\d\d (?P<host>[\w.-]+) kernel:")
_PREFIX = re.compile(r"^(?:\[[^\]]*\]\s*|[A-Z][a-z]{2} +\d+ [\d:]+ \S+ kernel:\s*(?:\[[^\]]*\]\s*)?|kernel:\s*)+")
_OTHERS_BY_WORDS: tuple[tuple[str, HappeningKind], ...] = (
    (r"task \S+:\d+ blocked for more than (?P<wait>\d{1,15}) seconds", "stalled"),
    (r"rcu: .*detected stalls|watchdog: BUG: soft lockup", "stalled"),
    (r"amdgpu.*(?:ring \S+ timeout|GPU reset|uncorrectable|poison)|\[drm.*GPU recovery", "device_error"),
    (r"NVRM: .*(?:fallen off the bus|GPU has fallen|RmInitAdapter failed)", "device_error"),
    (r"(?:mce|EDAC).*(?:[Hh]ardware [Ee]rror|Uncorrected|\bUE\b)", "device_error"),
    (r"pcieport.*(?:AER|Uncorrected).*[Ff]atal", "device_error"),
    (r"(?:mlx5_core|bnxt_en|ice|hfi1|cxi).*[Ll]ink (?:is )?(?:down|DOWN)", "connection_lost"),
    (
        r"nfs: server \S+ not responding|LustreError: .*(?:timed out|evicted)|BeeGFS.*(?:timeout|[Cc]ommunication)",
        "stalled",
    ),
    (r"I/O error, dev|EXT4-fs error|XFS .*corruption|nvme.*I/O.*timeout", "device_error"),
    (r"temperature above threshold, cpu clock throttled", "throttled"),
)
_OTHERS = [(re.compile(pattern), kind) for pattern, kind in _OTHERS_BY_WORDS]
_DISK_ERROR = re.compile(r"I/O error|EXT4-fs error|corruption|I/O.*timeout")
MOST_ALIKE = 16


class KernelLogReader(LineReader):
    """The number of an Xid is translated; those that the driver corrects by itself are harmless."""

    kind: ClassVar[str] = "kernel log"
    hints: ClassVar[tuple[str, ...]] = (
        "Xid (", "SXid (", "ut of memory: Kill", "oom-kill:", "invoked oom-killer", "blocked for more than",
        "soft lockup", "amdgpu", "NVRM:", "ardware Error", "EDAC", "pcieport", "ink is down", "ink down", "ink DOWN",
        "not responding", "LustreError", "I/O error, dev", "EXT4-fs error", "clock throttled", "detected stalls",
    )  # fmt: skip

    def __init__(self) -> None:
        self._alike: Counter[tuple[str, str]] = Counter()

    def take(self, line: Line) -> Iterable[Item]:
        happening = self._of_line(line)
        if happening is None:
            return ()
        key = (happening.kind, re.sub(r"\d+", "#", happening.message)[:60])
        self._alike[key] += 1
        return (happening,) if self._alike[key] <= MOST_ALIKE else ()

    def _of_line(self, line: Line) -> Happening | None:
        raw = line.raw
        if match := _XID.search(raw):
            return _xid(line, match)
        if match := _SXID.search(raw):
            return _happening(line, "device_error", f"SXid {match['number']}: {match['rest']}", values={
                "sxid": float(match["number"]), "bus_id": match["bus"], "meaning": "an error of an NVSwitch",
            })  # fmt: skip
        if match := _KILLED.search(raw):
            return _killed(line, match)
        if "oom-kill:constraint=" in raw or "invoked oom-killer" in raw:
            return None  # the line with the victim follows
        for pattern, kind in _OTHERS:
            if match := pattern.search(raw):
                values: dict[str, float | str] = {}
                if kind == "stalled" and match.groupdict().get("wait"):
                    values["waited_s"] = float(match["wait"])
                if kind == "device_error" and _DISK_ERROR.search(match[0]):
                    values["meaning"] = "an error of a disk"
                return _happening(line, kind, _PREFIX.sub("", raw).strip(), values=values)
        return None


def _xid(line: Line, match: re.Match[str]) -> Happening:
    number = int(match["number"])
    known = XIDS.get(number)
    values: dict[str, float | str] = {"xid": float(number), "bus_id": match["bus"]}
    if known:
        values |= {"meaning": known.meaning, "origin": known.origin, "action": known.action}
    if pid := _PID.search(match["rest"] or ""):
        values["pid"] = float(pid[1])
    message = f"Xid {number}: {match['rest'] or (known.meaning if known else '')}"
    return _happening(line, "device_error", message, values=values, is_benign=bool(known and known.is_benign))


def _killed(line: Line, match: re.Match[str]) -> Happening:
    values: dict[str, float | str] = {"pid": float(match["pid"]), "process": match["name"], "signal": 9.0}
    if rss := _RSS.search(match["rest"]):
        values["resident_bytes"] = float(rss[1]) * units.KIB
    if total := _TOTAL.search(match["rest"]):
        values["virtual_bytes"] = float(total[1]) * units.KIB
    is_cgroup = match["scope"].startswith("Memory cgroup")
    return _happening(line, "cgroup_kill" if is_cgroup else "host_out_of_memory", match[0], values=values)


def _happening(
    line: Line, kind: HappeningKind, message: str, *, values: dict[str, float | str], is_benign: bool = False
) -> Happening:
    host = line.host
    if syslog := _SYSLOG.match(line.raw):
        host = syslog["host"]
    if (uptime := _UPTIME.match(line.raw)) and "uptime_s" not in values:
        values["uptime_s"] = float(uptime["since"])
    return Happening(
        kind=kind, spot=line.spot, message=message.strip()[:600], at_s=_time(line), host=host, values=values,
        is_benign=is_benign,
    )  # fmt: skip


def _time(line: Line) -> float | None:
    """Of `dmesg -T` and of loggers that write the year; a clock without a year says no day."""
    clock = _CLOCK.match(line.raw)
    return line.at_s if clock is None else day_time_s(clock["day"])


def day_time_s(text: str) -> float | None:
    """`Mon Nov 16 19:00:00 2026`, read as UTC."""
    try:
        return float(calendar.timegm(time.strptime(re.sub(r" +", " ", text.strip()), "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        return None
