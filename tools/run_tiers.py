"""Run the test tiers, those that mostly wait beside others, and print what passed, failed and was skipped.

    .venv/bin/python tools/run_tiers.py [--tier NAME]... [--minutes N]

The tier `search` runs only if it is named: tests that draw their examples draw new ones, by a seed that is printed.
With --minutes every round has its own seed; SCALEWRIGHT_TEST_SEED=N chooses the first.

As root on a Debian-like system the programs that a tier needs are installed first; elsewhere a tier without its
programs is skipped, or only those of its tests that need them. A skipped tier counts as one skip. With CI=true every
skip but that of the gpu tier is a failure.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS_FAILED, NO_TESTS_COLLECTED = 1, 5  # pytest's exit statuses
TIMED = ("ranks", "kills", "slurm", "netns", "engines")
"""Tiers whose tests wait for real daemons and processes: on a busy machine one may miss its time."""
MOST_TRIED_AGAIN = 3
"""More failures than these are no accident."""
ENGINES_PYTHON = "TEST_ENGINES_PYTHON"
"""Variable that names the interpreter of the tier `engines`."""
SEED = "SCALEWRIGHT_TEST_SEED"
"""Variable that chooses the seed of the tier `search`."""
POLICY = Path("/usr/sbin/policy-rc.d")

STATIC = (("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy",), ("lint-imports", "--no-logo"))


@dataclass(frozen=True)
class Part:
    """Those tests of a tier that one pytest runs. A test with the mark that is not below the folders is never run."""

    mark: str
    folders: tuple[str, ...] = ("tests",)
    options: tuple[str, ...] = ()
    narrowed: str = ""
    """Which of the mark's tests; another part has the others."""

    @property
    def chosen(self) -> str:
        return f"({self.mark}) and {self.narrowed}" if self.narrowed else self.mark


UNIT = "not slurm and not netns and not browser and not gpu and not ranks and not kills and not engines"
# Halves of the list, so that what the tests of a file share is mostly made by one worker.
HALVES = ("-n", "2", "--dist", "worksteal")
# Two files at once; what compares times runs after them, alone.
TWO_FILES = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
RANKS = ("tests/ranks", "tests/records", "tests/cli", "tests/study", "tests/fuzz")
# Practice clusters mostly wait for Slurm's timers: each worker has its own. What measures a network runs alone.
CLUSTERS = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
PARTS = {
    "unit": (Part(UNIT, options=HALVES),),
    "ranks": (Part("ranks", RANKS, TWO_FILES, narrowed="not alone"), Part("ranks", RANKS, narrowed="alone")),
    "kills": (Part("kills", ("tests/kills", "tests/ranks", "tests/records", "tests/run"), HALVES),),
    "slurm": (Part("slurm", ("tests/slurm",), CLUSTERS),),
    "netns": (Part("netns", ("tests/netns",)),),
    "engines": (Part("engines", ("tests/engine_runs",), TWO_FILES),),
    "browser": (Part("browser", ("tests/browser",)),),
    "search": (Part("drawn", options=HALVES, narrowed=UNIT),),
}
TIERS = ("static", *PARTS)
ONLY_NAMED = ("search",)
"""Tiers that run only if they are named: what they try is different each time."""
GROUPS = (("unit",), ("ranks",), ("kills", "static"), ("slurm", "browser"), ("engines",), ("netns",), ("search",))
"""Tiers of a group run at once, the groups one after the other. Practice clusters and runs that are killed leave cores
idle while they wait; the browser and static checks need no exact times. What measures shaped links runs alone. The
first of a group prints as it goes, the others at their end."""
# Per tier: the programs it needs, each with the packages that bring it.
PROGRAMS: dict[str, dict[str, tuple[str, ...]]] = {
    "unit": {"shellcheck": ("shellcheck",), "mksquashfs": ("squashfs-tools",), "squashfuse": ("squashfuse",)},
    "slurm": {
        "slurmctld": ("slurmctld",),
        "slurmd": ("slurmd",),
        "sbatch": ("slurm-client",),
        "munged": ("munge",),
        "slurmdbd": ("slurmdbd",),
        "mariadbd": ("mariadb-server-core",),
        "ip": ("iproute2",),
    },
    "netns": {"ip": ("iproute2",)},
    "browser": {"chromium": ("chromium", "fonts-dejavu-core"), "chromedriver": ("chromium-driver",)},
}

# Tiers that run without their programs as well: the tests that need them skip themselves.
RUNS_WITHOUT = ("unit",)


@dataclass
class Result:
    tier: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""


def environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    # Daemons such as slurmctld are in sbin, which is not on every PATH.
    env["PATH"] = os.pathsep.join([str(ROOT / ".venv/bin"), env.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return env


def missing_programs(tier: str) -> list[str]:
    path = environment()["PATH"]
    return [name for name in PROGRAMS.get(tier, {}) if shutil.which(name, path=path) is None]


@contextmanager
def no_autostart() -> Iterator[None]:
    """Keep freshly installed packages from starting their services: policy-rc.d that answers 101, 'forbidden'."""
    saved = POLICY.with_name("policy-rc.d.saved-by-run-tiers")
    if POLICY.exists():
        POLICY.rename(saved)
    try:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)
        if saved.exists():
            saved.rename(POLICY)


def apt_get(*args: str) -> None:
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *args]
    env = environment() | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, flush=True)
        raise RuntimeError(f"apt-get {args[0]} failed ({done.returncode})")


@functools.cache
def apt_update() -> None:
    apt_get("update")


def install(tier: str, missing: list[str]) -> None:
    packages = sorted({package for name in missing for package in PROGRAMS[tier][name]})
    print(f"{tier}: installing {' '.join(packages)}", flush=True)
    apt_update()
    with no_autostart():
        apt_get("install", "-y", "--no-install-recommends", *packages)
    if still := missing_programs(tier):
        raise RuntimeError(f"installed, but still missing: {', '.join(still)}")


def run_static() -> Result:
    """The output of the checks is printed at the end, because another tier prints meanwhile."""
    result, lines = Result("static"), []
    for command in STATIC:
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                check=False,
            )  # fmt: skip
            ok, text = done.returncode == 0, done.stdout
        except FileNotFoundError:
            ok, text = False, "not found\n"
        lines.append(
            f"{text}static: {' '.join(command)}: {'ok' if ok else 'FAILED'}, {time.monotonic() - started:.1f} s\n"
        )
        result.passed += ok
        result.failed += not ok
    print(f"\n{''.join(lines)}", end="", flush=True)
    return result


def count(junit_xml: Path, result: Result) -> None:
    """Add up the test cases of a JUnit file; an xfailed test is written there as a skipped one."""
    for case in ET.parse(junit_xml).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        elif case.find("skipped") is not None:
            result.skipped += 1
        else:
            result.passed += 1


def pytest_once(part: Part, result: Result, folder: Path, *options: str, streams: bool = True) -> int:
    """One run of a part's tests, counted into `result`; the status pytest ended with. `streams`: print as it goes."""
    xml = folder / "junit.xml"
    xml.unlink(missing_ok=True)
    # pyproject.toml's options, and a cache that lasts for this call: it knows what failed.
    given = ("-o", "addopts=-q --strict-markers --strict-config", "-o", f"cache_dir={folder / 'cache'}")
    command = [sys.executable, "-m", "pytest", "-ra", *given, "-m", part.chosen, *options, f"--junit-xml={xml}"]
    command += part.folders
    output, env = None if streams else subprocess.PIPE, environment()
    if result.tier != "search":
        env.pop(SEED, None)
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=output, text=True, check=False)
    if not streams:
        print(f"\n{result.tier}\n{done.stdout}{done.stderr}", end="", flush=True)
    if xml.exists():
        count(xml, result)
    return done.returncode


def run_part(tier: str, part: Part, *, streams: bool) -> Result:
    result = Result(tier)
    options = part.options if importlib.util.find_spec("xdist") else ()
    with tempfile.TemporaryDirectory(prefix="tiers-") as directory:
        status = pytest_once(part, result, Path(directory), *options, streams=streams)
        if status == TESTS_FAILED and tier in TIMED and result.failed <= MOST_TRIED_AGAIN:
            print(f"{tier}: {result.failed} failed; they are tried once more, alone", flush=True)
            failed, result.failed = result.failed, 0
            status = pytest_once(part, result, Path(directory), "--last-failed", streams=streams)
            result.note = f"{failed - result.failed} of {failed} that failed passed when tried again"
    if status == NO_TESTS_COLLECTED:
        result.note = f"no tests were collected for {part.chosen}"
    elif status and not result.failed:
        result.note = f"pytest ended with status {status}"
    if status:
        result.failed = max(result.failed, 1)
    return result


def run_pytest(tier: str, *, streams: bool) -> Result:
    parts = [run_part(tier, part, streams=streams) for part in PARTS[tier]]
    return Result(
        tier,
        passed=sum(part.passed for part in parts),
        failed=sum(part.failed for part in parts),
        skipped=sum(part.skipped for part in parts),
        note="; ".join(part.note for part in parts if part.note),
    )


def engines_environment() -> Result | None:
    """Make the environment of other training programs, which lasts for later calls; its interpreter for the tests."""
    done = subprocess.run(
        [ROOT / "tools/setup_engines.sh"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout, flush=True)
        return Result("engines", skipped=1, note="its environment could not be made; it needs pip and a package index")
    os.environ[ENGINES_PYTHON] = done.stdout.splitlines()[-1]
    return None


def prepared(tier: str) -> Result | None:
    """Install what the tier lacks. A result: the tier cannot run."""
    if tier == "engines":
        return engines_environment()
    missing = missing_programs(tier)
    if not missing:
        return None
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        try:
            install(tier, missing)
        except RuntimeError as error:
            return Result(tier, failed=1, note=str(error))
    elif tier not in RUNS_WITHOUT:
        return Result(tier, skipped=1, note=f"missing: {', '.join(missing)}; installing needs root and apt-get")
    return None


def run_tier(tier: str, *, streams: bool = True) -> Result:
    started = time.monotonic()
    if streams:
        print(f"\n{tier}", flush=True)
    result = run_static() if tier == "static" else run_pytest(tier, streams=streams)
    result.seconds = time.monotonic() - started
    return result


def run_group(tiers: list[str]) -> list[Result]:
    """Programs are installed one after the other, because apt-get runs once at a time; then all tiers run at once."""
    results = {tier: result for tier in tiers if (result := prepared(tier)) is not None}
    able = [tier for tier in tiers if tier not in results]
    with ThreadPoolExecutor(max(len(able), 1)) as pool:
        results |= zip(able, pool.map(lambda tier: run_tier(tier, streams=tier == able[0]), able), strict=True)
    return [results[tier] for tier in tiers]


def run_round(chosen: list[str], seed: str | None = None) -> list[Result]:
    if "search" in chosen:
        os.environ[SEED] = seed or str(random.SystemRandom().randrange(2**31))
        print(f"search: {SEED}={os.environ[SEED]}", flush=True)
    groups = [[tier for tier in group if tier in chosen] for group in GROUPS]
    return [result for group in groups if group for result in run_group(group)]


def print_table(results: list[Result], seconds: float) -> None:
    """The total of the seconds is less than their sum where tiers ran at once."""
    total = Result("total", seconds=seconds)
    for r in results:
        total.passed += r.passed
        total.failed += r.failed
        total.skipped += r.skipped
    print(f"\n{'tier':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for r in [*results, total]:
        print(f"{r.tier:<10}{r.passed:>8}{r.failed:>8}{r.skipped:>9}{r.seconds:>9.1f}  {r.note}".rstrip())
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the test tiers and print a table of the results.")
    parser.add_argument("--tier", action="append", choices=TIERS, help="run this tier only (repeatable)")
    parser.add_argument("--minutes", type=float, default=0, help="run the tiers again until this time is up")
    args = parser.parse_args()
    everyday = [tier for tier in TIERS if tier not in ONLY_NAMED]
    chosen = [tier for tier in TIERS if tier in (args.tier or everyday)]
    started = time.monotonic()

    results = run_round(chosen, os.environ.get(SEED))
    while time.monotonic() < started + 60 * args.minutes and not any(r.failed for r in results):
        results += run_round(chosen)
    skipped = any(r.skipped for r in results)
    if not args.tier:
        results.append(Result("gpu", skipped=1, note="needs a GPU; run by hand: pytest -m gpu"))
    forbidden_skip = skipped and os.environ.get("CI") == "true"
    if forbidden_skip:
        print("\nCI=true: a skip is a failure")
    print_table(results, time.monotonic() - started)
    return int(forbidden_skip or any(r.failed for r in results))


if __name__ == "__main__":
    sys.exit(main())
