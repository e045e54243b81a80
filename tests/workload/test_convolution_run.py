"""What the convolution benchmark measures: the convolutions of residual networks, counted, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.types import ConvShape
from scalewright.errors import ConfigError
from scalewright.records.loader import restore
from scalewright.workload.convolution_run import ConvolutionCase, ConvolutionRun, cases_of
from scalewright.workload.convolutions import resnet_forward_flop

CATALOG = Catalog((packaged_data(),))
NETWORKS = ("resnet-18", "resnet-34", "resnet-50", "resnet-101", "resnet-152")


def shape_of(name: str, *, image_size: int = 224) -> ConvShape:
    shape = CATALOG.model(name).conv
    assert shape is not None
    return shape.model_copy(update={"image_size": image_size})


def case(**changes: Any) -> ConvolutionCase:
    return ConvolutionCase(
        **({"channels_in": 8, "channels_out": 8, "kernel": 3, "in_size": 8, "out_size": 8} | changes)
    )


def run(**changes: Any) -> ConvolutionRun:
    return ConvolutionRun(**({"precisions": ("fp32",), "batch": 2, "cases": (case(),), "budget_s": 9.0} | changes))


@pytest.mark.parametrize(
    ("name", "num_convolutions", "num_activations"),
    # He et al. 2015 (arXiv:1512.03385), table 1: layers without the classifier; a projection each of the stages that
    # change the width stands beside them and has no activation.
    [("resnet-18", 20, 17), ("resnet-34", 36, 33), ("resnet-50", 53, 49), ("resnet-101", 104, 100)],
)
def test_a_network_has_as_many_convolutions_as_published(
    name: str, num_convolutions: int, num_activations: int
) -> None:
    cases = cases_of(shape_of(name))
    assert sum(one.count for one in cases) == num_convolutions
    assert sum(one.count - one.num_unactivated for one in cases) == num_activations


def test_distinct_convolutions_of_resnet_50() -> None:
    cases = cases_of(shape_of("resnet-50"))
    count_of = {(c.kernel, c.channels_in, c.channels_out, c.in_size, c.out_size): c.count for c in cases}
    assert len(count_of) == len(cases) == 23
    assert count_of[7, 3, 64, 224, 112] == 1
    assert count_of[3, 256, 256, 14, 14] == 5
    assert count_of[3, 256, 256, 28, 14] == 1
    assert count_of[1, 64, 256, 56, 56] == 4  # three ends of blocks, and the first projection
    assert [(c.kernel, c.has_input_gradient) for c in cases if not c.has_input_gradient] == [(7, False)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("image_size", [32, 64, 224, 226, 288])
def test_work_is_the_networks(name: str, image_size: int) -> None:
    shape = shape_of(name, image_size=image_size)
    parts = resnet_forward_flop(shape)
    whole = sum(value for part, value in parts.items() if part != "classifier")
    assert sum(one.count * one.flop_per_sample for one in cases_of(shape)) == pytest.approx(whole)


def test_strides_and_paddings_are_the_networks_own() -> None:
    """He et al. 2015, with the stride on the 3x3: 7x7 stride 2 padding 3, 3x3 padding 1, 1x1 without."""
    shapes = {(c.kernel, c.in_size // c.out_size, c.stride, c.padding) for c in cases_of(shape_of("resnet-50"))}
    assert shapes == {(7, 2, 2, 3), (3, 1, 1, 1), (3, 2, 2, 1), (1, 1, 1, 0), (1, 2, 2, 0)}


def test_document_comes_back_as_it_was() -> None:
    config = run(
        precisions=("bf16", "fp32"), layouts=("last", "first"), batch=128, cases=cases_of(shape_of("resnet-50")),
        measures_norms=False, skips_missing=True, device="cuda",
    )  # fmt: skip
    doc = config.document()
    assert doc["schema"] == "scalewright.convolution-run/1"
    assert restore(doc, ConvolutionRun, where="test") == config


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: run(precisions=("fp8",)), "precision 'fp8' is not known: choose from fp32"),
        (lambda: run(precisions=()), "precision '' is not known"),
        (lambda: run(precisions=("fp32", "fp32")), "precision fp32,fp32: give each once"),
        (lambda: run(precisions=("tf32",), device="cpu"), "precision tf32 needs a GPU"),
        (lambda: run(layouts=("middle",)), "layout 'middle' is not known: choose from last, first"),
        (lambda: run(layouts=()), "layout '' is not known"),
        (lambda: run(batch=0), "--batch 0 must be 1 or more"),
        (lambda: run(cases=()), "name a residual network with --model"),
        (lambda: run(budget_s=0.1), "too short"),
        (lambda: run(device="tpu"), "choose cpu, cuda or auto"),
        (lambda: case(channels_in=0), "give 1 or more of each"),
        (lambda: case(count=0), "give 1 or more of each"),
        (lambda: case(num_unactivated=2), "2 of 1 convolutions without activation"),
        (lambda: case(kernel=2, out_size=8), "no stride and padding take a 2x2 convolution from 8 to 8 pixels"),
        (lambda: case(kernel=1, in_size=9, out_size=2), "no stride and padding"),
        (lambda: cases_of(shape_of("resnet-50", image_size=16)), "give an even number of 32 or more"),
        (lambda: cases_of(shape_of("resnet-50", image_size=225)), "give an even number of 32 or more"),
    ],
)
def test_bad_configurations_say_what_to_change(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
