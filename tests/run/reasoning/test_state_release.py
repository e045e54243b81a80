"""State that is released and restored: the memory goes, and training and answers go on bit by bit as before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from generate_cases import engine_of
from sequence_cases import CPU, batches_of, sequences, trainer_of

from scalewright.errors import ConfigError
from scalewright.run.device import join_group
from scalewright.run.generate.requests import Request
from scalewright.run.reasoning.colocated import CoLocated, engine_release, trainer_release
from scalewright.run.reasoning.objectives import ResponseLoss
from scalewright.run.reasoning.parts import StageClock
from scalewright.run.reasoning.trainer import SequenceTrainer
from scalewright.run.state_release import StateRelease, StoredTensors
from scalewright.run.world import World


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    join_group(World.from_environment({}, host="here"), CPU)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def trained(precision: str, *, releases: bool) -> tuple[list[float], SequenceTrainer]:
    trainer = trainer_of("llama", precision=precision)
    batches, losses = batches_of(sequences(4)), []
    state = trainer_release(trainer)
    for _ in range(3):
        losses.append(float(trainer.update(batches, ResponseLoss()).loss))
        if releases:
            state.release()
            state.restore()
    return losses, trainer


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_goes_on_bit_by_bit(precision: str) -> None:
    (losses, plain), (again, released) = (trained(precision, releases=releases) for releases in (False, True))
    assert losses == again
    expected, state = plain.optimizer.state(), released.optimizer.state()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    weights = dict(released.named_weights())
    assert all(torch.equal(weights[name], tensor) for name, tensor in plain.named_weights())


def test_memory_is_gone_while_it_is_released() -> None:
    trainer = trainer_of("llama", precision="bf16")
    trainer.update(batches_of(sequences(2)), ResponseLoss())
    state = trainer_release(trainer)
    num_params = sum(param.numel() for param in trainer.optimizer.params.values())
    moved = {one.name: one for one in state.release()}
    assert moved["moments"].num_bytes == 8 * num_params
    assert moved["master_weights"].num_bytes == 4 * num_params
    assert all(one.seconds >= 0 for one in moved.values())
    stored = [*trainer.optimizer.means.values(), *trainer.optimizer.masters.values()]
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in stored)
    assert all(param.grad is None for param in trainer.optimizer.params.values())
    assert state.release() == [], "it is released already"
    assert [one.name for one in state.restore()] == list(reversed(moved))
    assert state.restore() == []
    assert all(tensor.untyped_storage().nbytes() > 0 for tensor in stored)


def test_views_and_pieces_come_back_as_they_were() -> None:
    whole = torch.arange(1000, dtype=torch.int32)
    others = [torch.rand(7, 11), torch.rand(3).bfloat16()]
    before = [whole.clone(), *(one.clone() for one in others)]
    part = StoredTensors("some", lambda: [whole, whole[5:9], *others], chunk_bytes=64)
    state = StateRelease([part], device=CPU)
    for _ in range(2):
        (moved,) = state.release()
        assert moved.num_bytes == sum(one.nbytes for one in before)
        state.restore()
        assert all(torch.equal(a, b) for a, b in zip([whole, *others], before, strict=True))
    part.release()
    with pytest.raises(ConfigError, match="some is released already: restore it first"):
        part.release()


def test_an_engine_answers_the_same_after_its_cache_was_gone() -> None:
    request = Request(id="a", prompt=(1, 2, 3, 4), max_new_tokens=12)
    expected = engine_of("llama")
    expected.add(request)
    (plain,) = expected.drain()
    engine = engine_of("llama")
    engine.add(request)
    events = [engine.step() for _ in range(5)]
    state = engine_release(engine)
    moved = state.release()
    assert {one.name: one.num_bytes for one in moved}["kv_cache"] == engine.stats.cache_bytes
    state.restore()
    (answer,) = engine.drain()
    assert sum(len(one.tokens) for one in events) > 0
    assert answer.tokens == plain.tokens


def test_owners_take_turns_and_are_timed() -> None:
    trainer, engine, clock = trainer_of("llama"), engine_of("llama"), StageClock(CPU)
    turns = CoLocated(trainer, clock)
    turns.turn("engine")
    turns.add_engine(engine)
    turns.turn("engine")
    first = clock.take()
    assert set(first) == {"release"}
    turns.turn("trainer")
    turns.turn("trainer")
    assert set(clock.take()) == {"release", "restore"}
    assert trainer.update(batches_of(sequences(2)), ResponseLoss()).num_micro_batches
    assert "release gradients" in turns.note()
    assert "restore master weights" in turns.note()
