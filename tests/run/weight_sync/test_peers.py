"""Engines that pull from weight servers: equal weights, or one sentence and the old weights."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from generate_cases import SHAPES, engine_of, weights_of
from sync_cases import TOKEN, served

from scalewright.run.weight_sync.plan import EngineRank, TrainerLayout, engine_ranks, slices_in, whole_box
from scalewright.run.weight_sync.server import WeightServer, whole_parts
from scalewright.run.weight_sync.staging import Staging
from scalewright.run.weight_sync.sync import pull_weights
from scalewright.run.weight_sync.wire import WeightSyncError, split_address, wire_dtype


@pytest.mark.parametrize("name", ["gpt", "llama", "qwen"])
@pytest.mark.parametrize(
    "layout",
    [TrainerLayout(), TrainerLayout(dp=3, zero=3), TrainerLayout(dp=2, tp=2), TrainerLayout(dp=2, zero=1, tp=2)],
)
@pytest.mark.parametrize("tp", [1, 2])
def test_any_layout_gives_the_same_weights(name: str, layout: TrainerLayout, tp: int) -> None:
    weights = weights_of(SHAPES[name], seed=1)
    sizes = {n: tuple(t.shape) for n, t in weights.items()}
    with served(weights, layout) as (addresses, servers):
        for engine in engine_ranks(tp=tp, num_copies=1):
            tensors, result = pull_weights(addresses, engine, 3, token=TOKEN)
            parts = dict(tensors)
            assert set(parts) == set(engine.boxes(sizes))
            for n, box in engine.boxes(sizes).items():
                assert torch.equal(parts[n], weights[n][slices_in(box, whole_box(sizes[n]))])
            assert result.num_bytes == sum(t.nbytes for t in parts.values())
        if layout.dp * layout.tp > 1:
            assert all(server.num_bytes_sent for server in servers)


def test_an_engine_writes_with_the_pulled_weights() -> None:
    engine, other = engine_of("llama", seed=0), engine_of("llama", seed=1)
    with served(weights_of(SHAPES["llama"], seed=1), TrainerLayout(dp=2, zero=3)) as (addresses, _):
        tensors, result = pull_weights(addresses, EngineRank(), 3, token=TOKEN)
        engine.replace_weights(tensors, are_parts=True)
    ours, theirs = (dict(one._model.transformer.named_parameters()) for one in (engine, other))
    assert all(torch.equal(ours[n], theirs[n]) for n in ours)
    assert (result.way, result.version) == ("peers", 3)
    assert result.bytes_per_s == pytest.approx(result.num_bytes / result.seconds)


def test_a_new_version_replaces_the_old_one() -> None:
    before, after = (weights_of(SHAPES["gpt"], seed=seed) for seed in (0, 1))
    staging = Staging()
    with served(before) as (addresses, (server,)):
        first = dict(pull_weights(addresses, EngineRank(), 3, token=TOKEN, staging=staging)[0])
        pointers = {n: t.data_ptr() for n, t in first.items()}
        sums = [pull_weights(addresses, EngineRank(), 3, token=TOKEN)[1].checksum]
        server.publish(after, 4)
        tensors, result = pull_weights(addresses, EngineRank(), 4, token=TOKEN, staging=staging)
        second = dict(tensors)
        assert all(torch.equal(second[n], after[n]) for n in after)
        assert {n: t.data_ptr() for n, t in second.items()} == pointers, "memory is allocated once"
        assert result.checksum not in sums
        with pytest.raises(
            WeightSyncError, match=r"version 3 was requested, but trainer rank 0 has 4; the old weights"
        ):
            pull_weights(addresses, EngineRank(), 3, token=TOKEN)


def test_ranks_that_disagree_about_the_version_are_an_error() -> None:
    weights = weights_of(SHAPES["gpt"])
    with served(weights, TrainerLayout(dp=2)) as (addresses, servers):
        servers[1].publish(weights, 4)
        with pytest.raises(WeightSyncError, match=r"trainer rank 1 has 4 and the ranks disagree"):
            pull_weights(addresses, EngineRank(), 3, token=TOKEN)
        servers[0].publish(weights, 4)
        assert pull_weights(addresses, EngineRank(), 4, token=TOKEN)[1].version == 4


def test_a_wrong_token_gets_nothing() -> None:
    with served(weights_of(SHAPES["gpt"])) as (addresses, (server,)):
        with pytest.raises(WeightSyncError, match="refuses: the token is wrong"):
            pull_weights(addresses, EngineRank(), 3, token="another")
        assert server.num_bytes_sent == 0


@contextmanager
def spoiling_proxy(address: str, *, flips_at: int | None = None, cuts_at: int | None = None) -> Iterator[str]:
    """Passes bytes on, and flips one or cuts the connection when so many have passed towards the engine."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(source.recv(65536)):
                if is_answer and flips_at is not None and passed <= flips_at < passed + len(data):
                    data[flips_at - passed] ^= 1
                if is_answer and cuts_at is not None and passed + len(data) > cuts_at:
                    break
                target.sendall(data)
                passed += len(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes the other one

    def accept() -> None:
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return
            outer = socket.create_connection(split_address(address))
            threading.Thread(target=pump, args=(inner, outer, False), daemon=True).start()
            threading.Thread(target=pump, args=(outer, inner, True), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [({"flips_at": 40_000}, "arrived with a wrong checksum; the old weights stay"),
     ({"cuts_at": 40_000}, "was cut .*; the old weights stay, pull again"),
     ({"cuts_at": 10}, "was cut .*; the old weights stay, pull again")],
)  # fmt: skip
def test_a_spoilt_sync_leaves_the_engine_whole_and_can_be_repeated(spoil: dict[str, int], sentence: str) -> None:
    engine, new = engine_of("llama"), weights_of(SHAPES["llama"], seed=1)
    before = {n: p.clone() for n, p in engine._model.transformer.named_parameters()}
    staging = Staging()
    with served(new) as ((address,), _), spoiling_proxy(address, **spoil) as spoilt:
        with pytest.raises(WeightSyncError, match=sentence):
            engine.replace_weights(
                pull_weights([spoilt], EngineRank(), 3, token=TOKEN, staging=staging)[0], are_parts=True
            )
        assert all(torch.equal(before[n], p) for n, p in engine._model.transformer.named_parameters())
        assert engine.stats.num_weight_replacements == 0
        engine.replace_weights(
            pull_weights([address], EngineRank(), 3, token=TOKEN, staging=staging)[0], are_parts=True
        )
    after = engine_of("llama", seed=1)._model.transformer
    now = dict(engine._model.transformer.named_parameters())
    assert all(torch.equal(now[n], p) for n, p in after.named_parameters())


def test_a_server_that_is_gone_is_one_sentence() -> None:
    with served(weights_of(SHAPES["gpt"])) as (addresses, _):
        pass
    with pytest.raises(WeightSyncError, match=r"the connection to 127.0.0.1:\d+ was cut .*pull again"):
        pull_weights(addresses, EngineRank(), 3, token=TOKEN)
    with pytest.raises(WeightSyncError, match="is not HOST:PORT"):
        pull_weights(["nowhere"], EngineRank(), 3)


def test_a_16_bit_engine_gets_16_bit() -> None:
    weights = weights_of(SHAPES["gpt"])
    dtype = wire_dtype(torch.bfloat16, torch.float32)
    with served(weights, dtype=dtype) as (addresses, _):
        tensors, result = pull_weights(addresses, EngineRank(), 3, token=TOKEN)
        parts = dict(tensors)
    assert all(torch.equal(parts[n], t.bfloat16()) for n, t in weights.items())
    assert result.num_bytes == sum(t.nbytes for t in weights.values()) // 2
    assert wire_dtype(torch.float8_e4m3fn, torch.float32) == torch.bfloat16
    assert wire_dtype(torch.float32, torch.bfloat16) == torch.bfloat16
    assert wire_dtype(torch.float32, torch.float32) == torch.float32


def test_the_trainer_may_train_on_while_engines_pull() -> None:
    weights = weights_of(SHAPES["gpt"])
    copies = {n: t.clone() for n, t in weights.items()}
    server = WeightServer(weights, whole_parts(weights), 1)
    address = server.start()
    for tensor in weights.values():
        tensor.zero_()
    tensors = dict(pull_weights([address], EngineRank(), 1)[0])
    server.close()
    assert all(torch.equal(tensors[n], t) for n, t in copies.items())
