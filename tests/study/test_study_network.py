"""Mean traffic out of a node, against counting by hand."""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.kinds.training import predict_point

CATALOG = Catalog((packaged_data(),))


def point_of(layout: str) -> dict[str, str]:
    return {"model": "gpt2-medium", "system": "pinnacles", "precision": "fp16", "stack": "eager", "layout": layout}


def test_a_ring_sends_the_gradients_almost_twice() -> None:
    numbers = predict_point(CATALOG, point_of("dp=16,mbs=4,gbs=64"), where="here").numbers
    sent = numbers["network_bytes_per_s"].value * numbers["step_time_s"].value
    assert sent == pytest.approx(2 * 15 / 16 * 2 * 354_823_168, rel=0.01)  # GPT-2 Medium, 16 bit


def test_a_pipeline_sends_activations_forth_and_gradients_back() -> None:
    numbers = predict_point(CATALOG, point_of("pp=8,mbs=4,gbs=64"), where="here").numbers
    sent = numbers["network_bytes_per_s"].value * numbers["step_time_s"].value
    assert sent == pytest.approx(2 * 2 * 64 * 1024 * 1024)  # samples x tokens x width, both ways, 16 bit


def test_nothing_leaves_a_single_node() -> None:
    assert "network_bytes_per_s" not in predict_point(CATALOG, point_of("dp=2,mbs=4,gbs=8"), where="here").numbers
