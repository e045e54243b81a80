"""The configuration of `bench collectives`: sizes as nccl-tests makes them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.errors import ConfigError
from scalewright.records.loader import restore
from scalewright.workload.collective import OPS, parse_op
from scalewright.workload.collectives_run import CollectivesRun


def test_sizes_by_step_and_by_broken_factor() -> None:
    """nccl-tests -b 10 -e 100 -i 10, as the guide has it; a factor need not be whole."""
    assert CollectivesRun(min_bytes=10, max_bytes=100, step_bytes=10).sizes_bytes() == list(range(10, 101, 10))
    halves = CollectivesRun(min_bytes=1000, max_bytes=4000, factor=2**0.5).sizes_bytes()
    assert halves == [1000, 1414, 2000, 2828, 4000]
    assert CollectivesRun(min_bytes=512, max_bytes=512).sizes_bytes() == [512]
    assert CollectivesRun(min_bytes=100, max_bytes=350).sizes_bytes() == [100, 200]


def test_a_configuration_comes_back_from_its_document() -> None:
    run = CollectivesRun(ops=("broadcast", "all-reduce"), dtype="bf16", iterations=20, in_place=True)
    assert restore(run.document(), CollectivesRun, where="config.json") == run


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ops": ()}, "name one or more"),
        ({"ops": ("broadcast", "broadcast")}, "each once"),
        ({"dtype": "fp8"}, "choose fp32"),
        ({"device": "tpu"}, "choose auto"),
        ({"min_bytes": 2}, "start at 4 bytes"),
        ({"min_bytes": 4096, "max_bytes": 1024}, "swap them"),
        ({"factor": 1.0}, "factor of 1 does not make sizes grow"),
        ({"factor": float("nan")}, "give one above 1"),
        ({"step_bytes": -8}, "a step of -8 bytes"),
        ({"iterations": -1}, "0 or more"),
        ({"budget_s": 0.0}, "no time"),
        ({"budget_s": float("inf")}, "no time"),
        ({"factor": 1.0001}, "take a larger factor"),
        ({"step_bytes": 4}, "take a larger factor"),
    ],
)
def test_what_cannot_be_run_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CollectivesRun(**given)


def test_ranks_and_memory_are_checked() -> None:
    run = CollectivesRun(root=3, max_bytes=2**30)
    with pytest.raises(ConfigError, match="--ranks 2 or more"):
        run.check_ranks(1)
    with pytest.raises(ConfigError, match="choose 0 to 2"):
        run.check_ranks(3)
    run.check_ranks(4)
    run.check_memory(8.1 * 2**30, num_sharing=4)
    with pytest.raises(ConfigError, match="lower --max-bytes"):
        run.check_memory(7.9 * 2**30, num_sharing=4)


def test_names_of_operations() -> None:
    assert [parse_op(op.replace("-", "_").upper()) for op in OPS] == list(OPS)
    with pytest.raises(ConfigError, match="did you mean all-reduce"):
        parse_op("allreduce")
    with pytest.raises(ConfigError, match="choose among"):
        parse_op("zzz")
