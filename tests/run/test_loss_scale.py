"""Loss scaling without a look at the device: overflows change nothing but the scale, in a recorded step as well."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from recorded import NoLooks, Recorded

from scalewright.run import loss_scale
from scalewright.run.language.optimizer import AdamW
from scalewright.run.language.session import open_language_session
from scalewright.run.loss_scale import FIRST_LOSS_SCALE, LossScale
from scalewright.run.vision.session import open_vision_session
from scalewright.workload.language_run import OptimizerSettings, resolve
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.vision_run import VisionRun

CPU = torch.device("cpu")
TOO_LARGE = 2.0**60
"""A scale at which 16-bit gradients overflow."""
KINDS = ("language", "vision")
SCALES = {2: TOO_LARGE, 4: 1024.0}
"""Scales that are set before a step: steps 2 and 3 overflow."""


@pytest.fixture(scope="module", autouse=True)
def _group() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


class Small(NamedTuple):
    """One of the two benchmarks, as small as can be."""

    session: Any
    batches: list[tuple[Tensor, Tensor]]

    @property
    def scale(self) -> LossScale:
        return self.session.train_step.loss_scale  # type: ignore[no-any-return]

    def step(self, number: int) -> float:
        return float(self.session.step(*self.batches[number]).loss)

    def overflow(self, number: int) -> None:
        """A step whose gradients overflow; the scale is as it was afterwards."""
        before = self.scale.state()
        self.scale.restore({"value": TOO_LARGE, "good_steps": 1})
        self.step(number)
        assert self.scale.state() == {"value": TOO_LARGE / 2, "good_steps": 0}
        self.scale.restore(before)

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.session.optimizer.state().items()}

    def weights(self) -> list[Tensor]:
        return [param.detach().clone() for param in self.session.optimizer.params.values()]


def small(kind: str, precision: str = "fp16") -> Small:
    generator = torch.Generator().manual_seed(0)

    def drawn(high: int, *size: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(high, size, dtype=dtype, generator=generator)

    if kind == "vision":
        run = VisionRun(
            model_id="tiny", blocks=(1, 1, 1, 1), width=8, num_classes=10, image_size=32, num_ranks=1, batch=4,
            epochs=1, steps_per_epoch=8, precision=precision, device="cpu",  # type: ignore[arg-type]
        )  # fmt: skip
        images = [(drawn(256, 4, 32, 32, 3, dtype=torch.uint8), drawn(10, 4)) for _ in range(8)]
        return Small(open_vision_session(run, CPU), images)
    language = resolve(
        from_shape("layers=2,hidden=32,heads=4,vocab=64,seq=16"), Layout(mbs=2, gbs=4), precision=precision, steps=8,
        device="cpu", optimizer=OptimizerSettings(learning_rate=1e-2, warmup_steps=4),
    )  # fmt: skip
    return Small(open_language_session(language, CPU), [(drawn(64, 4, 16), drawn(64, 4, 16)) for _ in range(8)])


def same(mine: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(mine[name], other[name]) for name in mine | other)


# --- the scale -------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(flags=st.lists(st.booleans(), max_size=40), exponent=st.integers(0, 20))
def test_scale_halves_after_an_overflow_and_doubles_after_good_steps(flags: list[bool], exponent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "GROWTH_EVERY", 3)
        scale, value, good = LossScale(CPU, scales=True), 2.0**exponent, 0
        scale.restore({"value": value, "good_steps": 0})
        for flag in flags:
            scale.after(scale.overflowed(torch.tensor(float("nan") if flag else 1.0)))
            value, good = (max(value / 2, 1.0), 0) if flag else (value, good + 1)
            value, good = (value * 2, 0) if good == 3 else (value, good)
            assert scale.state() == {"value": value, "good_steps": good}


def test_other_precisions_have_a_scale_of_one_whatever_a_checkpoint_says() -> None:
    scale = LossScale(CPU, scales=False)
    scale.restore({"value": 1024.0, "good_steps": 7})
    scale.after(scale.overflowed(torch.tensor(float("inf"))))
    assert scale.unscale([torch.ones(2)]) is None
    assert (scale.value, scale.state()) == (1.0, {"value": 1.0, "good_steps": 0})


@pytest.mark.parametrize(
    "wrong", [{"value": 2.0}, {"value": "large", "good_steps": 0}, {"value": 2.0, "good_steps": None}]
)
def test_what_is_no_state_changes_nothing(wrong: dict[str, Any]) -> None:
    scale = LossScale(CPU, scales=True)
    with pytest.raises((KeyError, TypeError, ValueError)):
        scale.restore(wrong)
    assert scale.state() == {"value": FIRST_LOSS_SCALE, "good_steps": 0}


# --- updates that are skipped ----------------------------------------------------------------------------------------


def adamw(weights: torch.dtype, *, skips: bool, **changed: Any) -> AdamW:
    generator = torch.Generator().manual_seed(1)
    params = {name: nn.Parameter(torch.randn(size, generator=generator)) for name, size in (("a", (6, 3)), ("b", (5,)))}
    return AdamW(params, OptimizerSettings(learning_rate=0.1, **changed), weights=weights, skips=skips)


@pytest.mark.parametrize("weights", [torch.float16, torch.float32])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_adamw_passes_over_an_overflow_as_if_it_had_not_been(weights: torch.dtype, bad: float) -> None:
    skipping, plain = (adamw(weights, skips=skips, warmup_steps=3, weight_decay=0.1) for skips in (True, False))
    generator = torch.Generator().manual_seed(2)
    for number in range(6):
        grads = {
            name: torch.randn(param.shape, generator=generator).to(weights) for name, param in plain.params.items()
        }
        if number == 3:
            grads["a"][2, 1] = bad
        fine, factor = number != 3, torch.tensor(0.5 if number != 3 else bad)
        skipping.begin()
        skipping.apply(grads, factor, overflowed=torch.tensor(not fine))
        if fine:
            plain.begin()
            plain.apply(grads, factor)
        assert same(skipping.state(), plain.state())
        assert all(torch.equal(p, plain.params[name]) for name, p in skipping.params.items())
    assert skipping.num_updates == plain.num_updates == 5


@pytest.mark.parametrize(("warmup_steps", "decay_steps"), [(0, 0), (50, 0), (50, 300)])
def test_rates_and_corrections_are_the_hosts_at_any_number_of_updates(warmup_steps: int, decay_steps: int) -> None:
    options = {"warmup_steps": warmup_steps, "decay_steps": decay_steps}
    skipping, plain = (adamw(torch.float32, skips=skips, **options) for skips in (True, False))
    grads = {name: torch.zeros_like(param.detach()) for name, param in plain.params.items()}
    for done in (0, 1, 7, 48, 49, 50, 1_000, 250_000):
        for optimizer in (skipping, plain):
            optimizer.num_updates = done
            optimizer.begin()
        skipping.apply(grads, torch.tensor(1.0), overflowed=torch.tensor(False))
        plain.apply(grads, torch.tensor(1.0))
        torch.testing.assert_close(skipping.scalars, plain.scalars, rtol=2e-7, atol=0.0)
        assert skipping.num_updates == plain.num_updates == done + 1


def test_the_rate_rises_falls_and_reaches_zero() -> None:
    optimizer = adamw(torch.float32, skips=False, warmup_steps=10, decay_steps=100)
    rates = []
    for done in (0, 9, 49, 99, 100, 5_000):
        optimizer.num_updates = done
        optimizer.begin()
        rates.append(float(optimizer.scalars[0]))
    assert rates == pytest.approx([0.01, 0.091, 0.051, 0.001, 0.0, 0.0], abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_an_overflow_leaves_weights_state_and_count_untouched(kind: str) -> None:
    overflown, plain = small(kind), small(kind)
    for number in (0, 1, 2):
        assert overflown.step(number) == plain.step(number)
    before, weights = overflown.tensors(), overflown.weights()
    overflown.overflow(5)
    assert same(overflown.tensors(), before)
    assert all(torch.equal(a, b) for a, b in zip(overflown.weights(), weights, strict=True))
    assert overflown.session.optimizer.num_updates == 3
    if kind == "vision":
        overflown.session.train_step.num_done = 3  # the rate follows the run's steps, of which this was one
    for number in (3, 4):
        assert overflown.step(number) == plain.step(number)
    assert same(overflown.tensors(), plain.tensors())
    assert not same(overflown.tensors(), before)
    assert overflown.scale.state() == plain.scale.state() == {"value": FIRST_LOSS_SCALE, "good_steps": 5}


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_that_is_too_large_comes_down_until_steps_count(kind: str) -> None:
    trained = small(kind)
    trained.scale.restore({"value": 2.0**24, "good_steps": 0})
    halvings = -1  # the last step is a good one
    while trained.session.optimizer.num_updates == 0:
        trained.step(0)
        halvings += 1
    assert halvings > 1
    assert trained.scale.state() == {"value": 2.0 ** (24 - halvings), "good_steps": 1}
    assert all(torch.isfinite(tensor).all() for tensor in trained.tensors().values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_taken_up_goes_on_as_if_it_had_not_stopped(kind: str) -> None:
    whole = small(kind)
    whole.step(0)
    whole.overflow(1)
    whole.step(2)
    saved, running = whole.tensors(), {n: b.clone() for n, b in buffers(whole).items()}
    text = json.dumps({"num_updates": whole.session.optimizer.num_updates, "loss_scale": whole.scale.state()})
    resumed = small(kind)
    for name, tensor in resumed.session.optimizer.state().items():
        tensor.copy_(saved[name])
    for name, buffer in buffers(resumed).items():
        buffer.copy_(running[name])
    state = json.loads(text)
    assert state == {"num_updates": 2, "loss_scale": {"value": FIRST_LOSS_SCALE, "good_steps": 2}}
    resumed.session.optimizer.num_updates = state["num_updates"]
    resumed.scale.restore(state["loss_scale"])
    if kind == "vision":
        resumed.session.train_step.num_done = 3
    else:
        resumed.session.optimizer.refresh_weights()
    assert [whole.step(number) for number in (3, 4, 5)] == [resumed.step(number) for number in (3, 4, 5)]
    assert same(whole.tensors(), resumed.tensors())
    assert whole.session.optimizer.num_updates == resumed.session.optimizer.num_updates == 5


def buffers(of: Small) -> dict[str, Tensor]:
    return dict(of.session.model.named_buffers()) if hasattr(of.session, "model") else {}


# --- the host --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [float, bool, int, Tensor.item, Tensor.nonzero, lambda t: torch.equal(t, t)])
def test_a_look_is_noticed(look: Callable[[Tensor], object]) -> None:
    with NoLooks(), pytest.raises(AssertionError, match="waits"):
        look(torch.ones(()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_host_looks_at_nothing_within_a_step(kind: str, precision: str) -> None:
    trained = small(kind, precision)
    with NoLooks():
        for samples, targets in trained.batches[:3]:
            trained.session.step(samples, targets)
    assert trained.session.optimizer.num_updates == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "num_updates"), [("fp32", 6), ("fp16", 4)])
def test_a_recorded_step_trains_as_one_that_is_run_each_time(kind: str, precision: str, num_updates: int) -> None:
    """As a CUDA graph would: each time `begin` is called, and then the recorded work is done with what is there."""
    plain, replayed = small(kind, precision), small(kind, precision)
    step, graph = replayed.session.train_step, Recorded()
    samples, targets = (tensor.clone() for tensor in replayed.batches[0])
    step.begin()
    with graph:
        result = step.work(samples, targets)
    losses = [plain.step(0)]
    assert losses == [float(result.loss)]
    for number in range(1, 6):
        for either in (plain, replayed):
            if number in SCALES:
                either.scale.restore({"value": SCALES[number], "good_steps": 0})
        samples.copy_(replayed.batches[number][0])
        targets.copy_(replayed.batches[number][1])
        step.begin()
        graph.replay()
        losses.append(plain.step(number))
        assert losses[-1] == float(result.loss)
        assert plain.scale.state() == replayed.scale.state()
    assert len(set(losses)) == 6
    assert same(plain.tensors(), replayed.tensors())
    assert plain.session.optimizer.num_updates == replayed.session.optimizer.num_updates == num_updates


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_graphs_are_allowed_in_16_bit(precision: Any) -> None:
    shape = from_shape("layers=2,hidden=32,heads=4,vocab=64,seq=16")
    language = resolve(shape, Layout(), precision=precision, device="cuda", compile="graphs")
    assert (language.compile, language.precision) == ("graphs", precision)
    vision = replace(small("vision").session.run, precision=precision, device="cuda", compile="graphs")
    assert (vision.compile, vision.precision) == ("graphs", precision)
