"""Jobs end as they should, their values come through, and nothing that a job does reaches beyond it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from canary import open_canary
from hostile_code import ANSWERS, CRASHES, KINDS, LOOPS, NETWORK, OUTPUT, benign_job, job_of, problem_of

from scalewright import units
from scalewright.data.sandbox.pool import SandboxPool
from scalewright.data.sandbox.protections import as_texts, check_mode, is_running, what_is_possible
from scalewright.data.sandbox.types import FAILURES, Protection, SandboxJob, SandboxLimits
from scalewright.errors import ConfigError, EnvironmentFailedError

LIMITS = SandboxLimits(time_s=1.0, memory_bytes=256 * units.MIB, num_processes=12)
LATE_S = 1.5
"""A job may end so much later than its limit on a busy machine."""
SQUARE = "def square(x): return x * x"
PLAIN_KINDS = (*LOOPS[:2], *OUTPUT, *NETWORK, *CRASHES, *ANSWERS[:6],
               *(one for one in KINDS if one.name in ("daemon by two forks", "child left running", "allocates",
                                                      "a shell in the background", "traces others")))  # fmt: skip


def test_every_kind_of_hostile_code_is_held_and_harms_no_other_job(tmp_path: Path) -> None:
    assert len(KINDS) >= 100
    with open_canary(tmp_path / "canary") as canary, SandboxPool(limits=LIMITS, num_workers=6) as pool:
        attacks = [job_of(one, canary.arguments()) for one in KINDS]
        jobs = [job for number, attack in enumerate(attacks) for job in (attack, benign_job(number))]
        outcomes = pool.run_many(jobs)
        assert [outcome.id for outcome in outcomes] == [job.id for job in jobs]
        problems = [text for one, end in zip(KINDS, outcomes[::2], strict=True) if (text := problem_of(one, end))]
        assert not problems
        slow = [
            one
            for one, end in zip(KINDS, outcomes[::2], strict=True)
            if end.status == "time" and "time" not in one.ends
        ]
        assert len(slow) < len(KINDS) / 10
        assert [outcome.value for outcome in outcomes[1::2]] == [number**2 for number in range(len(KINDS))]
        assert max(outcome.seconds for outcome in outcomes) < LIMITS.time_s + LATE_S
        assert not canary.damages(outcomes)
        assert pool.num_replaced == 0


def test_plain_limits_hold_what_they_can(tmp_path: Path) -> None:
    with open_canary(tmp_path / "canary") as canary, SandboxPool(limits=LIMITS, num_workers=4, is_plain=True) as pool:
        outcomes = pool.run_many([job_of(one, canary.arguments()) for one in PLAIN_KINDS])
        problems = [text for one, end in zip(PLAIN_KINDS, outcomes, strict=True) if (text := problem_of(one, end))]
        assert not problems
        assert not canary.damages(outcomes)


def test_values_of_functions_commands_and_preloaded_functions_come_through(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("LOADED = [3]\ndef times(x): return LOADED[0] * x\n")
    with SandboxPool(num_workers=2, preload=f"{tmp_path}/mine.py:times") as pool:
        jobs = [
            SandboxJob(id="a", source=SQUARE, function="square", arguments={"x": 1.5}),
            SandboxJob(id="b", source="print('shown'); value = 1"),
            SandboxJob(id="c", command=("tr", "a-z", "A-Z"), stdin="text\n" * 3),
            SandboxJob(id="d", arguments={"x": 7}),
            SandboxJob(
                id="e", source="def f(): return {'reward': 1, 'parts': (1, 2.5, None, True, 'ü')}", function="f"
            ),
            SandboxJob(id="f", source=SQUARE, function="cube"),
        ]
        ends = {outcome.id: outcome for outcome in pool.run_many(jobs)}
    assert ends["a"].value == 2.25
    assert (ends["b"].status, ends["b"].stdout_tail) == ("ok", "shown\n")
    assert ends["c"].value == "TEXT\n" * 3
    assert ends["d"].value == 21
    assert ends["e"].value == {"reward": 1, "parts": [1, 2.5, None, True, "ü"]}
    assert (ends["f"].status, ends["f"].why) == ("value", "there is no function cube")


def test_jobs_do_not_see_each_other() -> None:
    leave = "open('/tmp/left', 'w').write('x'); import builtins; builtins.left = 1"
    look = "import builtins, os\ndef f(): return [os.path.exists('/tmp/left'), hasattr(builtins, 'left')]"
    with SandboxPool(num_workers=1) as pool:
        jobs = [SandboxJob(id="a", source=leave), SandboxJob(id="b", source=look, function="f")]
        assert [outcome.value for outcome in pool.run_many(jobs)] == [None, [False, False]]


ACCEPTED = {
    "function": ("def add(a, b): return a + b", "assert add(1, 2) == 3\nassert add('a', 'b') == 'ab'"),
    "check function": ("def add(a, b): return a + b", "def check(f):\n    assert f(1, 2) == 3\ncheck(add)"),
    "exception": (
        "def half(x):\n    if x % 2: raise ValueError('odd')\n    return x // 2",
        "try:\n    half(3)\n    assert False\nexcept ValueError as error:\n    assert 'odd' in str(error)",
    ),
    "in place": ("def order(x): x.sort()", "a = [3, 1, 2]\norder(a)\nassert a == [1, 2, 3]"),
    "class": (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)",
        "s = Stack()\ns.push(4)\ns.push(5)\nassert s.items == [4, 5]\nassert len(s.items) == 2",
    ),
    "generator": ("def up(n):\n    yield from range(n)", "assert list(up(3)) == [0, 1, 2]"),
    "collections": (
        "from collections import Counter\ndef count(t): return Counter(t)\ndef both(): return ({1, 2}, b'x', 1j, None)",
        "assert count('aab') == {'a': 2, 'b': 1}\nassert both() == ({1, 2}, b'x', 1j, None)",
    ),
    "large number": ("def f(n): return 7 ** n", "assert f(6000) == 7 ** 6000"),
    "module": ("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(2), 1.41421356, rel_tol=1e-6)"),
    "function as argument": ("def twice(x): return 2 * x\ndef on(f, x): return f(x)", "assert on(twice, 4) == 8"),
    "value": ("LIMIT = 4", "assert LIMIT == 4"),
}
REFUSED = {
    "wrong": ("def add(a, b): return a - b", "assert add(1, 2) == 3", "an assert does not hold (line 1 of the tests)"),
    "not there": ("def sub(a, b): return 1", "assert add(1, 2) == 3", "NameError: name 'add' is not defined (line 1"),
    "no code": ("The answer is 4.", "assert add(1, 2) == 3", "the answer raised SyntaxError"),
    "raises": ("def add(a, b): return a / 0", "x = 1\nassert add(1, 2)", "ZeroDivisionError: division by zero (line 2"),
    "lambda": ("def on(f): return f()", "assert on(lambda: 1) == 1", "function cannot be given to the answer"),
    "tests": ("def add(a, b): return 3", "assert add(1, 2) = 3", "SyntaxError"),
}  # fmt: skip


def test_answers_pass_their_tests_only_where_they_are_right() -> None:
    jobs = [SandboxJob(id=name, source=source, tests=tests) for name, (source, tests) in ACCEPTED.items()]
    jobs += [SandboxJob(id=name, source=source, tests=tests) for name, (source, tests, _) in REFUSED.items()]
    with SandboxPool(num_workers=4) as pool:
        ends = {outcome.id: outcome for outcome in pool.run_many(jobs)}
    assert {name: ends[name].value["why"] for name in ACCEPTED if not ends[name].value["reward"]} == {}
    for name, (_, _, why) in REFUSED.items():
        assert ends[name].value["reward"] == 0.0
        assert why in ends[name].value["why"], name


def test_a_worker_that_dies_is_replaced_and_costs_one_job() -> None:
    slow = SandboxJob(id="slow", source="import time\ntime.sleep(20)")
    with SandboxPool(num_workers=1, limits=SandboxLimits(time_s=30.0)) as pool:
        assert pool.run(benign_job(3)).value == 9
        killer = threading.Timer(0.5, lambda: [os.kill(pid, signal.SIGKILL) for pid in children()])
        killer.start()
        start_s = time.monotonic()
        outcomes = pool.run_many([slow, benign_job(4)])
        assert time.monotonic() - start_s < 15.0
        assert [outcome.status for outcome in outcomes] == ["lost", "ok"]
        assert pool.num_replaced == 1


def children() -> list[int]:
    """Workers of this process."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"sandbox.server" in (path / "cmdline").read_bytes():
                pids.append(int(path.name))
        except OSError:
            continue  # it ended
    return pids


@pytest.mark.parametrize("is_plain", [False, True], ids=["namespaces", "plain"])
def test_jobs_end_when_the_process_of_the_pool_is_killed(is_plain: bool) -> None:
    mark = f"orphan-{os.getpid()}-{int(is_plain)}"
    source = f"import ctypes, time\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)\ntime.sleep(60)"
    program = (
        "from scalewright.data.sandbox.pool import SandboxPool\n"
        "from scalewright.data.sandbox.types import SandboxJob, SandboxLimits\n"
        f"pool = SandboxPool(num_workers=1, is_plain={is_plain}, limits=SandboxLimits(time_s=60.0))\n"
        f"pool.run(SandboxJob(id='a', source={source!r}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as owner:
        assert happens(lambda: is_running(mark), 20.0)
        owner.kill()
    assert happens(lambda: not is_running(mark), 10.0)


def happens(condition: object, within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def test_a_function_that_cannot_be_imported_refuses_its_jobs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise KeyError('no key')\n")
    with SandboxPool(num_workers=2, preload=f"{tmp_path}/mine.py:reward") as pool:
        outcomes = pool.run_many([SandboxJob(id=str(number)) for number in range(3)])
    assert {outcome.status for outcome in outcomes} == {"refused"}
    assert "cannot be imported: KeyError: 'no key'" in outcomes[0].why


PROBE = (
    "from scalewright.data.sandbox.protections import what_is_possible\n"
    "print({one.name: one.is_on for one in what_is_possible(is_plain=%s)})"
)
WITHOUT_NAMESPACES = {"time", "memory", "output", "core dumps", "network", "system calls", "environment", "descendants"}
"""Held by limits, the filter and the worker alone."""


def test_this_host_is_tried_and_strict_follows_it() -> None:
    protections = what_is_possible()
    assert all(one.how if one.is_on else one.why_not for one in protections)
    assert {one.name for one in protections if one.is_on} >= WITHOUT_NAMESPACES
    check_mode("auto", protections)
    missing = Protection(name="reads", is_on=False, why_not="namespaces: unshare: Operation not permitted")
    with pytest.raises(
        EnvironmentFailedError, match=r"--sandbox strict: this host does not permit limits on reads \(n"
    ):
        check_mode("strict", [*protections, missing])
    assert as_texts([missing]) == {"reads": "off (namespaces: unshare: Operation not permitted)"}


def test_without_namespaces_it_says_what_is_missing() -> None:
    by_name = {one.name: one for one in what_is_possible(is_plain=True)}
    assert {name for name, one in by_name.items() if one.is_on} >= WITHOUT_NAMESPACES
    assert not by_name["reads"].is_on
    assert by_name["reads"].why_not == "a job reads files of the user; namespaces: switched off"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"time_s": 0.0}, "the time limit of a reward is 0 s: give a time above 0 s"),
        ({"memory_bytes": 1000}, "the memory_bytes of a reward is 1000: give 16777216 or more"),
        ({"num_processes": 0}, "the num_processes of a reward is 0: give 1 or more"),
    ],
)
def test_limits_that_leave_no_room_are_refused(values: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SandboxLimits(**values)  # type: ignore[arg-type]


def test_every_failure_has_a_sentence() -> None:
    assert {status for one in KINDS for status in one.ends} - {"ok"} <= set(FAILURES)
