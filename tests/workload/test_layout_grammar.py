"""Layouts and shapes as people write them: what is read back, what is refused and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.errors import ConfigError, LayoutError, UnknownNameError
from scalewright.workload.layout import Layout, check_divides, divisibility_problems, interleaves, parse_layout
from scalewright.workload.model import from_shape
from scalewright.workload.precision import recipe
from scalewright.workload.stage import check_stage

DEGREE = st.integers(1, 64)
LAYOUTS: Any = st.builds(
    Layout,
    tp=DEGREE,
    pp=DEGREE,
    vpp=DEGREE,
    cp=DEGREE,
    ep=DEGREE,
    dp=DEGREE,
    mbs=DEGREE,
    gbs=st.integers(1, 4096),
    zero=st.integers(0, 3),
    sp=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "operators", "full"]),
)


@given(layout=LAYOUTS)
@settings(deadline=None, max_examples=100)
def test_layout_reads_back_as_written(layout: Layout) -> None:
    assert parse_layout(str(layout)) == layout


def test_spaces_and_order_do_not_matter() -> None:
    assert parse_layout(" dp = 8 , tp=4,") == parse_layout("tp=4,dp=8")


def test_what_is_left_out_is_one_and_the_batch_is_one_micro_batch_per_copy() -> None:
    layout = parse_layout("dp=8,mbs=2")
    assert (layout.tp, layout.pp, layout.gbs, layout.zero, layout.recompute) == (1, 1, 16, 0, "none")
    assert layout.num_gpus == 8
    assert layout.num_micro_batches == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dq=8", r"unknown part 'dq'.*dp"),
        ("zzzzz=8", r"unknown part 'zzzzz'.*known: .*tp"),
        ("tp", r"tp no value: write tp=VALUE"),
        ("tp=", r"tp no value"),
        ("tp=2,tp=4", r"tp twice"),
        ("tp=two", r"tp=two.*whole number"),
        ("tp=1.5", r"tp=1\.5.*whole number"),
        ("dp=0", r"dp must be 1 or more"),
        ("dp=-8", r"dp must be 1 or more"),
        ("zero=4", r"zero=4.*0, 1, 2 and 3"),
        ("zero=-1", r"zero must be 0 or more"),
        ("sp=2", r"sp=2.*0 \(off\) or 1 \(on\)"),
        ("recompute=some", r"recompute=some.*none, selective, modules, operators, full"),
    ],
)
def test_bad_form_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_layout(text)


@given(text=st.text(alphabet="tpdmbgszero=,0123456789 -", max_size=30))
@settings(deadline=None, max_examples=150)
def test_any_text_is_a_layout_or_one_error(text: str) -> None:
    try:
        layout = parse_layout(text)
    except ConfigError:
        return
    assert layout.num_gpus >= 1


POWERS = st.sampled_from([1, 2, 4, 8])


@given(tp=POWERS, pp=POWERS, vpp=POWERS, cp=POWERS, dp=DEGREE, mbs=DEGREE, rounds=st.integers(1, 5), data=st.data())
@settings(deadline=None, max_examples=100)
def test_layout_that_divides_has_no_problem(
    tp: int, pp: int, vpp: int, cp: int, dp: int, mbs: int, rounds: int, data: st.DataObject
) -> None:
    """Built so that everything divides: heads, layers, sequence and batch are multiples of what splits them."""
    vpp = vpp if pp > 1 else 1
    layout = Layout(tp=tp, pp=pp, vpp=vpp, cp=cp, ep=1, dp=dp, mbs=mbs, gbs=dp * mbs * pp * rounds, sp=tp > 1)
    kv_heads = data.draw(st.sampled_from([tp, 2 * tp]))
    shape = {"layers": pp * vpp * rounds, "heads": 4 * tp, "kv_heads": kv_heads, "seq": 2 * cp * 128}
    assert divisibility_problems(layout, **shape) == []
    check_divides(layout, **shape)


@given(layers=st.integers(1, 200), pp=st.integers(2, 64), vpp=st.integers(2, 16))
def test_interleaving_keeps_the_fullest_stage_in_equal_chunks(layers: int, pp: int, vpp: int) -> None:
    """Dealt out as frameworks do: chunks as even as can be, the longer ones first, chunk i on stage i modulo pp."""
    even, extra = divmod(layers, pp * vpp)
    chunks = [even + (i < extra) for i in range(pp * vpp)]
    is_equal = len({*chunks[::pp]}) == 1 and min(chunks) > 0
    assert bool(interleaves(layers=layers, pp=pp, vpp=vpp)) == is_equal
    if is_equal:
        assert max(sum(chunks[stage::pp]) for stage in range(pp)) == -(-layers // pp)


def test_llama_3_405b_and_deepseek_v3_are_interleaved_as_published() -> None:
    for layers, pp, vpp in ((126, 16, 4), (61, 16, 2)):
        assert interleaves(layers=layers, pp=pp, vpp=vpp)


GPT = {"layers": 24, "heads": 16, "kv_heads": 16, "seq": 2048}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=3", r"tp=3 does not divide 16 attention heads"),
        ("pp=25", r"pp=25 is more stages than the model's 24 layers"),
        ("pp=4,vpp=4,gbs=4", r"pp=4 x vpp=4 does not divide 24 layers"),
        ("vpp=2", r"vpp=2 needs a pipeline"),
        ("cp=3", r"cp=3 does not split a sequence of 2048"),
        ("dp=8,gbs=12", r"gbs=12 is not a multiple of dp x mbs = 8 x 1 = 8"),
        ("pp=4,vpp=2,gbs=6", r"6 micro-batches are not a multiple of pp=4"),
        ("sp=1", r"sp=1 needs tensor parallelism"),
        ("ep=3,dp=8", r"ep=3 does not divide"),
    ],
)
def test_layout_that_cannot_divide_says_why(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        check_divides(parse_layout(text), **GPT)


def test_key_value_heads_must_divide_one_way() -> None:
    with pytest.raises(LayoutError, match="tp=6 and 4 key-value heads"):
        check_divides(parse_layout("tp=6"), layers=24, heads=12, kv_heads=4, seq=2048)
    check_divides(parse_layout("tp=8"), layers=24, heads=16, kv_heads=4, seq=2048)


def test_a_second_problem_is_reported_too() -> None:
    with pytest.raises(LayoutError, match=r"also cp=3"):
        check_divides(parse_layout("pp=25,cp=3"), **GPT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=24,hidden=1024", "lacks heads"),
        ("hidden=1024,heads=16", "lacks layers"),
        ("layers=24,hidden=1000,heads=16", "1000 does not divide by heads 16"),
        ("layers=0,hidden=1024,heads=16", "layers must be 1 or more"),
        ("layers=24,hidden=1024,heads=0", "heads must be 1 or more"),
        ("layer=24,hidden=1024,heads=16", "unknown part 'layer'.*layers"),
        ("layers=24,hidden=1x,heads=16", "hidden=1x.*whole number"),
    ],
)
def test_bad_shape_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_shape(text)


@pytest.mark.parametrize("seq", [0, -1])
def test_sequence_must_be_positive(seq: int) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        from_shape("layers=2,hidden=64,heads=2").with_seq(seq)


def test_unknown_precision_and_stage_list_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"bf15.*bf16"):
        recipe("bf15")
    with pytest.raises(UnknownNameError, match=r"pretrian.*pretrain"):
        check_stage("pretrian")


def test_mixed_precision_adam_keeps_sixteen_bytes_with_half_gradients() -> None:
    # Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12.
    r = recipe("fp16")
    assert (r.weight_bytes, r.gradient_bytes, r.optimizer_bytes) == (2, 2, 12)
