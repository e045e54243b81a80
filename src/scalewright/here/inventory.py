"""The inventory of this machine for `doctor`: what is installed, visible and permitted. Changes nothing."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from scalewright import __version__
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.library import home, open_catalog
from scalewright.catalog.types import KINDS
from scalewright.catalog.verified import untested_paths
from scalewright.records.documents import document
from scalewright.records.types import EnvName
from scalewright.units import BYTES, format

State = Literal["ok", "missing", "denied", "broken", "untested"]
CLONE_NEWNET = 0x40000000
PROBE_TIMEOUT_S = 10.0

EXTRAS = {
    "lint": ("tree-sitter", "tree-sitter-bash"),
    "data": ("lmdb", "pillow"),
    "parquet": ("pyarrow",),
    "text": ("tokenizers", "pyarrow", "py3langid"),
    "run": ("torch", "psutil", "nvidia-ml-py"),
    "report": ("matplotlib", "jinja2"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One fact about the machine: what was checked, and the state it is in."""

    name: str
    area: Literal["installed", "visible", "permitted", "sandbox", "untested"]
    state: State
    detail: str


def inspect_machine() -> list[Check]:
    probes: tuple[Callable[[], Iterator[Check]], ...] = (
        _python,
        _extras,
        _programs,
        _catalogue,
        _devices,
        _fabric,
        _slurm,
        _permissions,
        _sandbox,
    )
    return [*(check for probe in probes for check in probe()), *_untested()]


def as_document(checks: list[Check]) -> dict[str, Any]:
    return document("doctor", {"scalewright": __version__, "checks": [asdict(c) for c in checks]})


def _output(*command: str) -> tuple[int, str]:
    """Exit code and output of a program; 127 if it is missing, 124 if it hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return 127, ""
    except (subprocess.TimeoutExpired, OSError) as error:
        return 124, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


def _python() -> Iterator[Check]:
    detail = f"{platform.python_version()} at {sys.executable}, {platform.machine()}, {os.cpu_count()} CPUs"
    yield Check(name="python", area="installed", state="ok", detail=detail)


def _extras() -> Iterator[Check]:
    for extra, packages in EXTRAS.items():
        installed, missing = [], []
        for package in packages:
            try:
                installed.append(f"{package} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                missing.append(package)
        hint = f"; missing {', '.join(missing)}: pip install 'scalewright[{extra}]'" if missing else ""
        yield Check(
            name=f"extra {extra}",
            area="installed",
            state="missing" if missing else "ok",
            detail=", ".join(installed) + hint if installed else hint[2:],
        )


def _programs() -> Iterator[Check]:
    for program, use in (
        ("apptainer", "containers"),
        ("singularity", "containers"),
        ("enroot", "containers"),
        ("shifter", "containers"),
        ("lstopo", "topology"),
        ("shellcheck", "script checks"),
        ("chromium", "report tests"),
    ):
        path = shutil.which(program)
        yield Check(
            name=program, area="installed", state="ok" if path else "missing", detail=path or f"not on PATH ({use})"
        )


def _catalogue() -> Iterator[Check]:
    catalog = open_catalog()
    read = [catalog.readable(kind) for kind in KINDS]
    count, problems = sum(len(entries) for entries, _ in read), [text for _, broken in read for text in broken]
    for problem in problems:
        yield Check(name="catalogue", area="visible", state="broken", detail=problem)
    own = [str(f) for f in catalog.folders[:-1] if f.is_dir()]
    places = f"; own entries in {', '.join(own)}" if own else f"; no own entries ({home()} does not exist)"
    yield Check(name="catalogue", area="visible", state="ok", detail=f"{count} entries load{places}")
    here = os.environ.get(EnvName.SYSTEM)
    calibrated = calibrations.names()
    stored = (
        f"calibrations: {', '.join(calibrated)}" if calibrated else "no calibration (scalewright calibrate makes one)"
    )
    detail = f"{EnvName.SYSTEM}={here}" if here else f"{EnvName.SYSTEM} is not set; {stored}"
    here = here or (calibrated[0] if calibrated else None)
    yield Check(name="system here", area="visible", state="ok" if here else "missing", detail=detail)


def _devices() -> Iterator[Check]:
    code, text = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    nvidia = text.splitlines() if code == 0 else []
    yield Check(
        name="nvidia gpus",
        area="visible",
        state="ok" if nvidia else "missing",
        detail=f"{len(nvidia)} x {nvidia[0]}" if nvidia else "nvidia-smi finds none",
    )
    amd = sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"))
    gpus = [p for p in amd if _read(p) not in ("", "0")]
    yield Check(
        name="amd gpus",
        area="visible",
        state="ok" if gpus else "missing",
        detail=f"{len(gpus)} in the kernel's topology" if gpus else "none in /sys/class/kfd",
    )


def _fabric() -> Iterator[Check]:
    for name, folder in (("infiniband", "/sys/class/infiniband"), ("slingshot", "/sys/class/cxi")):
        ports = sorted(p.name for p in Path(folder).glob("*"))
        yield Check(
            name=name,
            area="visible",
            state="ok" if ports else "missing",
            detail=", ".join(ports) or f"nothing in {folder}",
        )


def _slurm() -> Iterator[Check]:
    code, version = _output("sinfo", "--version")
    if code != 0:
        path = shutil.which("sinfo")
        why = "sinfo is not on PATH" if path is None else f"{path} finds no cluster: {_first(version)}"
        yield Check(name="slurm", area="visible", state="missing", detail=why)
        return
    code, nodes = _output("sinfo", "--noheader", "--Node", "--format=%N")
    if code != 0:
        yield Check(name="slurm", area="visible", state="broken", detail=f"{version}, but sinfo fails: {_first(nodes)}")
        return
    names = sorted(set(nodes.split()))
    yield Check(name="slurm", area="visible", state="ok", detail=f"{version}, {len(names)} nodes")
    code, text = _output("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    state: State = "ok" if code == 0 and text else "missing"
    yield Check(
        name="slurm accounting",
        area="visible",
        state=state,
        detail=_first(text) if state == "ok" else "the accounting storage does not answer",
    )


def _permissions() -> Iterator[Check]:
    yield _namespace_check()
    for name, pattern in (
        ("cpu energy counters", "/sys/class/powercap/intel-rapl:0/energy_uj"),
        ("cray power counters", "/sys/cray/pm_counters/energy"),
    ):
        path = Path(pattern)
        state: State = "missing" if not path.exists() else "ok" if os.access(path, os.R_OK) else "denied"
        yield Check(name=name, area="permitted", state=state, detail=pattern)
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    yield Check(
        name="shared memory",
        area="permitted",
        state="ok" if free else "missing",
        detail=f"{format(float(free), BYTES)} free in /dev/shm",
    )


def _namespace_check() -> Check:
    """Try to create a network namespace in a child process. Only a try shows whether it is permitted."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        os._exit(0 if libc.unshare(CLONE_NEWNET) == 0 else min(ctypes.get_errno(), 125))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    state: State = "ok" if code == 0 else "denied"
    denied = f"unshare: {os.strerror(code)}; shaped networks need root"
    detail = "a namespace could be created" if code == 0 else denied
    return Check(name="network namespaces", area="permitted", state=state, detail=detail)


def _sandbox() -> Iterator[Check]:
    """Protections of rewards, each tried by an attack."""
    from scalewright.data.sandbox.protections import what_is_possible

    for one in what_is_possible():
        detail = f"by {one.how}" if one.is_on else one.why_not
        yield Check(name=one.name, area="sandbox", state="ok" if one.is_on else "denied", detail=detail)


def _untested() -> list[Check]:
    return [Check(name=name, area="untested", state="untested", detail=detail) for name, detail in untested_paths()]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _first(text: str) -> str:
    return text.splitlines()[0] if text else "no output"
