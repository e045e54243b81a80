"""Parameters counted from the shape, against the counts the makers publish."""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.workload.model import from_catalog, from_shape

CATALOG = Catalog((packaged_data(),))
PUBLISHED = [i for i in CATALOG.ids("models") if CATALOG.model(i).published.params is not None]
WITH_ACTIVE = [i for i in CATALOG.ids("models") if CATALOG.model(i).published.active_params is not None]


@pytest.mark.parametrize("name", PUBLISHED)
def test_count_equals_the_published_one(name: str) -> None:
    entry = CATALOG.model(name)
    spec, published = from_catalog(entry), entry.published
    assert published.params is not None
    parts = spec.params_by_part()
    counted = spec.num_params - (0 if published.includes_embeddings else parts["embedding"])
    slack = 0.0 if published.rounded_to is None else published.rounded_to.value / 2
    assert abs(counted - published.params.value) <= slack


def test_most_models_publish_an_exact_count() -> None:
    exact = [i for i in PUBLISHED if CATALOG.model(i).published.rounded_to is None]
    assert len(exact) >= 45


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-v3", 671_026_419_200),
        ("bloom-176b", 176_247_271_424),
        ("bert-base", 109_482_240),
        ("t5-base", 222_903_552),
        ("resnet-50", 25_557_032),
    ],
)
def test_counts_anyone_can_look_up(name: str, params: int) -> None:
    assert from_catalog(CATALOG.model(name)).num_params == params


@pytest.mark.parametrize("name", WITH_ACTIVE)
def test_active_parameters_agree_with_the_published_figure(name: str) -> None:
    """Sources round, and differ in whether they count the embeddings: the published figure lies in between."""
    entry = CATALOG.model(name)
    spec = from_catalog(entry)
    assert entry.published.active_params is not None
    both_tables = 2 * spec.transformer.vocab * spec.transformer.hidden
    published = entry.published.active_params.value
    assert (spec.num_active_params - both_tables) * 0.97 <= published <= spec.num_active_params * 1.03
    assert spec.num_active_params < spec.num_params


@pytest.mark.parametrize("name", CATALOG.ids("models"))
def test_parts_are_positive_and_add_up(name: str) -> None:
    spec = from_catalog(CATALOG.model(name))
    parts = spec.params_by_part()
    assert min(parts.values()) > 0
    assert sum(parts.values()) == spec.num_params


def test_shape_given_by_hand_counts_like_the_catalogue() -> None:
    spec = from_shape("layers=12,hidden=768,heads=12,vocab=50257,seq=1024")
    assert spec.num_params == 124_439_808
