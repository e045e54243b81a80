"""The time limit of work that cannot be asked to stop holds, even if the work swallows the interruption."""

from __future__ import annotations

import signal
import time

import pytest

from scalewright.run.micro.time_limit import TooLong, at_most

LIMIT_S = 0.1
UNRAISABLE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def work_on() -> None:
    SlowDestructor()
    time.sleep(60.0)


class SlowDestructor:
    """Python ignores an exception in a destructor, and with it the first interruption."""

    def __del__(self) -> None:
        time.sleep(2 * LIMIT_S)


def test_work_within_the_limit_ends_as_ever_and_leaves_no_timer() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with at_most(60.0):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


@UNRAISABLE
def test_a_swallowed_interruption_is_repeated() -> None:
    before = signal.getsignal(signal.SIGALRM)
    begun_s = time.monotonic()
    with pytest.raises(TooLong), at_most(LIMIT_S):
        work_on()
    assert time.monotonic() < begun_s + 30.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


@UNRAISABLE
def test_work_that_ends_after_the_limit_took_too_long() -> None:
    with pytest.raises(TooLong), at_most(LIMIT_S):
        SlowDestructor()
