"""Broadcast down a chain, files, checksums and the choice between ways."""

from __future__ import annotations

import random
import sys
import threading
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from generate_cases import SHAPES, weights_of
from sync_cases import TOKEN, held, served

from scalewright.errors import ConfigError
from scalewright.run.generate.safetensor_files import read_header
from scalewright.run.weight_sync.broadcast import WeightRelay
from scalewright.run.weight_sync.checksums import digest_of, joined
from scalewright.run.weight_sync.files import remove_old, version_folder, weight_file, write_weights
from scalewright.run.weight_sync.peers import Sources
from scalewright.run.weight_sync.plan import EngineRank, TrainerLayout, engine_ranks, slices_in, whole_box
from scalewright.run.weight_sync.sync import SYNC_WAYS, SyncRates, WayTrials, choose, predicted_times_s, pull_weights
from scalewright.run.weight_sync.wire import WeightSyncError

SHARDED = TrainerLayout(dp=2, zero=3, tp=2)


def write_all(folder: Path, weights: dict[str, torch.Tensor], layout: TrainerLayout, version: int = 3) -> int:
    return sum(
        write_weights(folder, *held(weights, layout, rank), version, rank=rank, num_ranks=layout.num_ranks)
        for rank in range(layout.num_ranks)
    )


def test_a_checksum_is_joined_from_those_of_pieces() -> None:
    chance = random.Random(0)
    for _ in range(50):
        pieces = [chance.randbytes(chance.choice([0, 1, 7, 64, 5000])) for _ in range(chance.randint(1, 6))]
        assert joined((zlib.crc32(one), len(one)) for one in pieces) == zlib.crc32(b"".join(pieces))


@pytest.mark.parametrize("layout", [TrainerLayout(dp=2), SHARDED])
@pytest.mark.parametrize("tp", [1, 2])
def test_all_ways_bring_the_same_weights(layout: TrainerLayout, tp: int, tmp_path: Path) -> None:
    weights = weights_of(SHAPES["llama"], seed=2)
    sizes = {n: tuple(t.shape) for n, t in weights.items()}
    whole_bytes = sum(t.nbytes for t in weights.values())
    assert write_all(tmp_path, weights, layout) == whole_bytes, "replicas write nothing twice"
    with served(weights, layout) as (addresses, _), served(weights) as ((first,), _):
        for engine in engine_ranks(tp=tp, num_copies=1):
            own = {n: weights[n][slices_in(b, whole_box(sizes[n]))] for n, b in engine.boxes(sizes).items()}
            for way, sources in (("peers", addresses), ("broadcast", [first]), ("file", [str(tmp_path)])):
                tensors, result = pull_weights(sources, engine, 3, way, token=TOKEN)  # type: ignore[arg-type]
                parts = dict(tensors)
                assert set(parts) == set(own)
                assert all(torch.equal(parts[n], own[n]) for n in own), way
                assert result.checksum == digest_of(own), way
                assert result.num_bytes >= sum(t.nbytes for t in own.values())
                assert result.num_bytes <= whole_bytes


def test_a_chain_passes_on_what_it_has() -> None:
    """Five relays behind rank 0 of a trainer, which itself still gathers from the other ranks."""
    weights = weights_of(SHAPES["gpt"], seed=2)
    with ExitStack() as stack:
        addresses, _ = stack.enter_context(served(weights, SHARDED))
        relays = [WeightRelay(token=TOKEN) for _ in range(6)]
        starts = [relay.start() for relay in relays]
        for relay in relays:
            stack.callback(relay.close)
        sums: dict[int, str] = {}

        def pull(number: int) -> None:
            _, result = pull_weights(
                [starts[number - 1]], EngineRank(), 3, "broadcast", token=TOKEN, relay=relays[number], wait_s=10.0
            )
            sums[number] = result.checksum

        threads = [threading.Thread(target=pull, args=(number,)) for number in range(1, 6)]
        for thread in reversed(threads):
            thread.start()
        relays[0].fill(Sources(addresses=addresses, version=3, token=TOKEN))
        for thread in threads:
            thread.join(20.0)
        assert set(sums) == set(range(1, 6))
        assert set(sums.values()) == {digest_of(weights)}


def test_a_chain_whose_start_fails_is_one_sentence_for_all() -> None:
    weights = weights_of(SHAPES["gpt"])
    with served(weights) as ((address,), (server,)), ExitStack() as stack:
        first, second = WeightRelay(token=TOKEN), WeightRelay(token=TOKEN)
        start = first.start()
        stack.callback(first.close)
        stack.callback(second.close)
        first.staging.begin({"a": (range(4),)}, {"a": torch.float32})
        first._offer(3)
        first.staging.fail("the connection before was cut")
        with pytest.raises(WeightSyncError, match="the connection before was cut; the old weights stay, pull again"):
            pull_weights([start], EngineRank(), 3, "broadcast", token=TOKEN, relay=second)
        tensors, _ = pull_weights([address], EngineRank(), 3, "broadcast", token=TOKEN, relay=second)
        assert all(torch.equal(t, weights[n]) for n, t in tensors)
        server.close()


def test_files_are_safetensors_and_old_versions_go(tmp_path: Path) -> None:
    weights = weights_of(SHAPES["gpt"])
    for version in (1, 2, 3, 4):
        write_all(tmp_path, weights, TrainerLayout(), version)
        remove_old(tmp_path, version)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["version-00000003", "version-00000004"]
    stored = read_header(weight_file(version_folder(tmp_path, 4), 0))
    assert all(torch.equal(stored[n].read(), t) for n, t in weights.items())
    assert not list(tmp_path.rglob("*.writing"))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [("flip", "has a wrong checksum; the old weights stay"), ("cut", "is not a file of weights .*; the old weights"),
     ("lose", "rank-00001.safetensors is not there; the old weights stay"), ("version", "holds version 2, not 3")],
)  # fmt: skip
def test_a_spoilt_file_is_one_sentence(spoil: str, sentence: str, tmp_path: Path) -> None:
    weights = weights_of(SHAPES["gpt"])
    write_all(tmp_path, weights, TrainerLayout(dp=2, zero=1))
    path = weight_file(version_folder(tmp_path, 3), 1)
    content = bytearray(path.read_bytes())
    if spoil == "flip":
        content[-100] ^= 4
        path.write_bytes(content)
    elif spoil == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif spoil == "lose":
        path.unlink()
    else:
        path.write_bytes(content.replace(b'\\"version\\":3', b'\\"version\\":2'))
    with pytest.raises(WeightSyncError, match=sentence):
        pull_weights([str(tmp_path)], EngineRank(), 3, "file")
    write_all(tmp_path, weights, TrainerLayout(dp=2, zero=1))
    tensors, _ = pull_weights([str(tmp_path)], EngineRank(), 3, "file")
    assert all(torch.equal(t, weights[n]) for n, t in tensors)


RATES: dict[str, Any] = {"wire_bytes_per_s": 1e9, "write_bytes_per_s": 5e8, "read_bytes_per_s": 1e9}


def test_times_follow_the_formulas() -> None:
    times = predicted_times_s(
        weights_bytes=8e9, num_trainers=4, num_engine_ranks=4, tp=2, rates=SyncRates(**RATES)
    )  # fmt: skip
    assert times == pytest.approx({"peers": 4.0, "broadcast": 8.0, "file": 32.0})


def test_auto_is_the_fastest_that_is_known() -> None:
    assert choose("auto") == "peers"
    assert choose("auto", {"peers": 3.0, "broadcast": 2.0, "file": 9.0}) == "broadcast"
    assert choose("auto", {"file": 9.0}) == "file"
    assert choose("file", {"peers": 3.0}) == "file"
    slow_wire = SyncRates(wire_bytes_per_s=1e6, write_bytes_per_s=1e9, read_bytes_per_s=1e9)
    times = predicted_times_s(weights_bytes=1e9, num_trainers=1, num_engine_ranks=1, tp=1, rates=slow_wire)
    assert choose("auto", times) == "file"
    with pytest.raises(ConfigError, match="sync way 'pigeon' is not known: choose auto, peers, broadcast, file"):
        choose("pigeon")
    with pytest.raises(ConfigError, match="sync way 'pigeon' is not known"):
        pull_weights(["a"], EngineRank(), 1, "pigeon")  # type: ignore[arg-type]


def test_auto_tries_each_way_twice_and_then_takes_the_fastest_of_what_came() -> None:
    trials = WayTrials("auto")
    offer_s = {"peers": 0.2, "broadcast": 0.5, "file": 0.1}
    seen = []
    for number in range(9):
        way = trials.next_way()
        seen.append(way)
        trials.offered(way, offer_s[way] + (5.0 if number < 3 else 0.0))  # the first of each starts something
        trials.pulled({"peers": 0.4, "broadcast": 0.05, "file": 0.9})
    assert sorted(seen[:6]) == sorted([*SYNC_WAYS, *SYNC_WAYS])
    assert seen[6:] == ["broadcast"] * 3, trials.times_s


def test_a_way_that_was_heard_of_late_still_wins() -> None:
    """Engines run behind the trainer: after two trials of each way, only one pull is known."""
    trials, seen = WayTrials("auto"), []
    for number in range(12):
        seen.append(trials.next_way())
        trials.offered(seen[-1], 0.02)
        trials.pulled({"peers": 0.04} if number < 7 else {"peers": 0.04, "broadcast": 0.06, "file": 0.003})
    assert set(seen[6:8]) == {"broadcast", "file"}, seen
    assert seen[8:] == ["file"] * 4, seen


def test_auto_without_a_pull_that_was_heard_of_takes_peers_and_a_named_way_is_never_left() -> None:
    trials, named = WayTrials("auto"), WayTrials("file")
    for _ in range(len(SYNC_WAYS) * WayTrials.MOST_TRIALS):
        trials.offered(trials.next_way(), 1.0)
        assert named.next_way() == "file"
        named.offered("file", 1e9)
    assert trials.next_way() == "peers"
