"""Shards are as many as the consumers share evenly and as large as the guide says, and a plan says what gave way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.data.sizing import SHARD_RANGE_BYTES, plan_shards
from scalewright.errors import ConfigError

IMAGENET = {"data_bytes": 138 * 10**9, "num_samples": 1_281_167}


@given(
    data_bytes=st.integers(10**6, 10**14),
    sample_bytes=st.integers(1_000, 10**6),
    num_consumers=st.integers(1, 4096),
    use=st.sampled_from(["training", "validation"]),
)
def test_plans_keep_the_bounds(data_bytes: int, sample_bytes: int, num_consumers: int, use: str) -> None:
    num_samples = max(data_bytes // sample_bytes, 1)
    plan = plan_shards(data_bytes=data_bytes, num_samples=num_samples, num_consumers=num_consumers, use=use)  # type: ignore[arg-type]
    smallest, largest = SHARD_RANGE_BYTES[use]  # type: ignore[index]
    assert 1 <= plan.num_shards <= num_samples
    assert plan.shard_bytes * plan.num_shards >= data_bytes
    assert plan.num_shards == 1 or plan.shard_bytes >= smallest
    if not plan.note:
        assert plan.num_shards % num_consumers == 0
        assert plan.num_shards >= 2 * num_consumers
        assert plan.shard_bytes <= largest + 2 * (sample_bytes + 4096)


def test_imagenet_on_64_consumers_has_four_shards_each() -> None:
    plan = plan_shards(**IMAGENET, num_consumers=64)
    assert (plan.num_shards, plan.note) == (256, "")
    assert 128e6 < plan.shard_bytes < 1e9


def test_imagenet_on_one_consumer_has_shards_of_at_most_a_gigabyte() -> None:
    assert plan_shards(**IMAGENET, num_consumers=1).num_shards == 141


def test_too_many_consumers_are_told_so() -> None:
    plan = plan_shards(data_bytes=10**9, num_samples=10_000, num_consumers=64)
    assert plan.num_shards == 7
    assert "smaller than 128 MB" in plan.note


@pytest.mark.parametrize("name", ["data_bytes", "num_samples", "num_consumers"])
def test_nothing_to_plan_is_refused(name: str) -> None:
    sizes = {"data_bytes": 10**9, "num_samples": 10, "num_consumers": 1} | {name: 0}
    with pytest.raises(ConfigError, match="1 or more of each"):
        plan_shards(**sizes)
