"""`bench sync` as every rank runs it: weights from trainer ranks to engine ranks by three ways, timed and checked.

Rows (one per way): way, num_trainers, num_engine_ranks, tp, num_engines, weights_bytes, bytes (what one engine rank
receives, the mean), time_s with time_low_s and time_high_s (from the trainer's call until the last engine rank has all
of it, checked), repeats, prepare_s (the trainer's part of that, before anything can be pulled), bytes_per_s of one
engine rank, link_bytes_per_s, link_frac, predicted_s, checksum (of the first engine rank), num_wrong (engine ranks
whose weights were not those of the trainer).
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.records.documents import read_document
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.metric_names import EVENT_PART
from scalewright.records.types import ExitCode
from scalewright.run.device import choose_device, join_group
from scalewright.run.language.model import Transformer, fill_initial
from scalewright.run.micro.conditions import ConditionsWatch, open_board
from scalewright.run.micro.disk import page_cache
from scalewright.run.micro.free_memory import free_bytes
from scalewright.run.micro.session import device_identity, software_versions
from scalewright.run.rank_context import RankContext
from scalewright.run.reasoning.exchange import from_all_ranks
from scalewright.run.weight_sync.broadcast import WeightRelay
from scalewright.run.weight_sync.checksums import digest_of
from scalewright.run.weight_sync.files import remove_old, version_folder, weight_file, write_weights
from scalewright.run.weight_sync.link_rates import PlainStream, read_plain, stream_bytes_per_s, write_plain
from scalewright.run.weight_sync.peers import Sources
from scalewright.run.weight_sync.plan import EngineRank, Size, TrainerLayout, num_elements, slices_in, whole_box
from scalewright.run.weight_sync.result import SyncResult, SyncWay
from scalewright.run.weight_sync.server import HeldPart, WeightServer
from scalewright.run.weight_sync.staging import Staging
from scalewright.run.weight_sync.sync import SyncRates, choose, predicted_times_s, pull_weights
from scalewright.run.weight_sync.wire import DTYPES, address_towards
from scalewright.workload.sync_run import SyncRun, from_document

WAIT_S = 300.0
MOST_PLAIN_BYTES = 2**28
"""Of the plain files that the storage's rate is measured with."""


def run(rank: RankContext) -> ExitCode:
    """Sync on all ranks, and write the measurements on rank 0."""
    where = rank.directory.config
    config = from_document(read_document(where, SyncRun.KIND), where=str(where))
    if config.num_ranks != rank.world.world_size:
        raise ConfigError(
            f"layout and engines need {config.num_ranks} ranks, and {rank.world.world_size} were started: start "
            f"{config.num_ranks}"
        )
    is_trainer = rank.world.rank < config.num_trainers
    device = choose_device(config.device, rank.world) if is_trainer else torch.device("cpu")
    join_group(rank.world, torch.device("cpu"))  # only agreements go over it: devices may be shared
    bench = SyncBench(config, rank, device)
    try:
        with ConditionsWatch(open_board(device)) as watch:
            measured = bench.measured()
        if measured is not None and rank.world.is_first:
            rows, summary, notes = measured
            write_measurements(
                rank.directory,
                Measurements(
                    kind="sync", device=device_identity(device, rank.world), versions=software_versions(device),
                    rows=rows, conditions=watch.conditions().document(), summary=summary,
                    notes=[*notes, *watch.notes()],
                ),
            )  # fmt: skip
    finally:
        bench.close()
        with contextlib.suppress(RuntimeError):  # peers may have left
            dist.destroy_process_group()
    return ExitCode.REQUEUE if measured is None else ExitCode.YES


@dataclass(slots=True, kw_only=True)
class WayTimes:
    """The syncs by one way."""

    times_s: list[float] = field(default_factory=list)
    prepare_s: list[float] = field(default_factory=list)
    num_bytes: float = 0.0
    checksum: str = ""
    num_wrong: int = 0


class SyncBench:
    """One rank: of the trainer or of an engine."""

    def __init__(self, config: SyncRun, rank: RankContext, device: torch.device) -> None:
        self.config, self.rank, self.device = config, rank, device
        self.number = rank.world.rank - config.num_trainers
        self.is_trainer = self.number < 0
        self.host = address_towards(rank.world.master_addr) if rank.world.world_size > 1 else "127.0.0.1"
        self.folder = Path(config.path)
        self.sizes = named_sizes(config)
        self.weights_bytes = sum(num_elements(whole_box(one)) for one in self.sizes.values()) * self.dtype.itemsize
        self.engine = EngineRank(
            tp_rank=max(self.number, 0) % config.engine_tp, tp=config.engine_tp, number=max(self.number, 0)
        )
        self.staging, self.relay = Staging(), WeightRelay(host=self.host)
        self.server: WeightServer | None = None
        self.tensors: dict[str, Tensor] = {}
        self.parts: dict[str, HeldPart] = {}
        self.expected: dict[int, str] = {}
        self.stream: PlainStream | None = None

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.config.precision]

    def measured(self) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]] | None:
        """Rows, summary and notes; None if a signal asked the run to stop."""
        self._check_memory()
        self._part("making weights", 0.0)
        from_all_ranks(self._make_weights)
        addresses = self._addresses()
        self._part("plain streams and files", 0.1)
        rates, alone = self._rates(addresses)
        times = self._syncs(addresses)
        if times is None:
            return None
        predicted = predicted_times_s(
            weights_bytes=self.weights_bytes, num_trainers=self.config.num_trainers,
            num_engine_ranks=self.config.num_engine_ranks, tp=self.config.engine_tp,
            rates=replace(rates, wire_bytes_per_s=alone), copy_bytes=self._copy_bytes(),
        )  # fmt: skip
        rows = [self._row(way, one, rates, predicted[way]) for way, one in times.items()]
        medians: dict[SyncWay, float] = {way: statistics.median(one.times_s) for way, one in times.items()}
        summary = {
            "link_bytes_per_s": rates.wire_bytes_per_s, "link_alone_bytes_per_s": alone,
            "write_bytes_per_s": rates.write_bytes_per_s, "read_bytes_per_s": rates.read_bytes_per_s,
            "chosen": choose("auto", medians), "predicted_choice": choose("auto", predicted),
            "num_wrong": sum(one.num_wrong for one in times.values()), "weights_bytes": self.weights_bytes,
            "model_id": self.config.model_id, "layout": self.config.layout_text,
        }  # fmt: skip
        return rows, summary, self._notes(times)

    def _copy_bytes(self) -> int:
        """What all ranks of one engine store."""
        tp = self.config.engine_tp
        ranks = [EngineRank(tp_rank=rank, tp=tp).boxes(self.sizes) for rank in range(tp)]
        return sum(num_elements(box) for boxes in ranks for box in boxes.values()) * self.dtype.itemsize

    def close(self) -> None:
        self.relay.close()
        if self.server is not None:
            self.server.close()
        if self.stream is not None:
            self.stream.close()
        if self.rank.world.is_first:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _notes(self, times: dict[SyncWay, WayTimes]) -> list[str]:
        notes = []
        if "file" in times and self.rank.world.num_nodes == 1:
            notes.append(
                "file: all ranks are on one machine, so that every copy after the first reads from its page cache; "
                "between nodes each copy reads from the storage"
            )
        unfinished = [way for way, one in times.items() if len(one.times_s) < self.config.repeats]
        return notes + ([f"the budget ended before all repeats of {', '.join(unfinished)}"] if unfinished else [])

    def _check_memory(self) -> None:
        num_params = self.weights_bytes // self.dtype.itemsize
        needed = self.config.memory_bytes(num_params) / max(self.rank.world.num_nodes, 1)
        room = free_bytes(torch.device("cpu"))
        if room and needed > room:
            raise ConfigError(
                f"a sync of {self.config.model_id} needs about {needed:.3g} bytes of memory on a node and "
                f"{room:.3g} are free: choose a smaller model, fewer engines, or leave out broadcast"
            )

    def _make_weights(self) -> None:
        """A trainer rank's parts; on an engine rank, the checksums that its parts must have."""
        config = self.config
        layout = TrainerLayout(dp=int(config.layout.dp), zero=int(config.layout.zero), tp=int(config.layout.tp))
        wholes = {}
        for name, size in self.sizes.items():
            whole = fill_initial(name, torch.empty(size), seed=config.seed, layers=config.shape.layers).to(self.dtype)
            if self.is_trainer:
                me = self.rank.world.rank
                part = HeldPart(size=size, box=layout.box(name, size, me), is_first=layout.is_first(name, size, me))
                self.parts[name] = part
                self.tensors[name] = whole[slices_in(part.box, whole_box(size))].clone().to(self.device)
            else:
                box = self.engine.box(name, size)
                if box is not None:
                    wholes[name] = whole[slices_in(box, whole_box(size))]
        if not self.is_trainer:
            self.expected = {0: digest_of(wholes), 1: digest_of({name: -part for name, part in wholes.items()})}
            self.staging.begin(
                self.engine.boxes(self.sizes), dict.fromkeys(self.sizes, self.dtype)
            )  # fmt: skip

    def _addresses(self) -> list[dict[str, str]]:
        """Of every rank: where its server, its relay and its plain stream listen."""
        own = {"relay": self.relay.start()}
        if self.is_trainer:
            self.server = WeightServer(self.tensors, self.parts, 0, host=self.host, dtype=self.dtype)
            self.stream = PlainStream(self.host)
            own |= {"server": self.server.start(), "stream": self.stream.address}
            self.folder.mkdir(parents=True, exist_ok=True)
        return from_all_ranks(lambda: own)

    def _rates(self, addresses: list[dict[str, str]]) -> tuple[SyncRates, float]:
        """The path's own rates: a stream to every engine rank at once, one alone, and plain files."""
        config = self.config
        source = addresses[max(self.number, 0) % config.num_trainers]["stream"]
        at_once = from_all_ranks(lambda: 0.0 if self.is_trainer else stream_bytes_per_s(source))
        alone = from_all_ranks(lambda: stream_bytes_per_s(source) if self.number == 0 else 0.0)
        share = min(self.weights_bytes, MOST_PLAIN_BYTES) // config.num_trainers
        plain = [self.folder / f"plain-{rank}" for rank in range(config.num_trainers)]
        wrote = from_all_ranks(lambda: write_plain(plain[self.rank.world.rank], share) if self.is_trainer else 0.0)
        read = from_all_ranks(lambda: 0.0 if self.is_trainer else sum(map(read_plain, plain)))
        if self.is_trainer:
            plain[self.rank.world.rank].unlink()
        rates = SyncRates(
            wire_bytes_per_s=statistics.fmean(at_once[config.num_trainers :]),
            write_bytes_per_s=share * config.num_trainers / max(wrote),
            read_bytes_per_s=share * config.num_trainers * config.num_engine_ranks / max(read),
        )
        return rates, alone[config.num_trainers]

    def _syncs(self, addresses: list[dict[str, str]]) -> dict[SyncWay, WayTimes] | None:
        """Repeat the ways in turn, so that a slow moment of the machine does not hit one way only."""
        config, begun_s, version = self.config, time.monotonic(), 0
        times: dict[SyncWay, WayTimes] = {way: WayTimes() for way in config.sync_ways}
        for repeat in range(config.repeats):
            for way in config.sync_ways:
                used = (time.monotonic() - begun_s) / config.budget_s
                is_stopped, is_late = self._agreed(is_late=used > 1.0 and repeat > 0)
                if is_stopped:
                    return None
                if is_late:
                    return times
                version += 1
                self._part(f"{way}, {repeat + 1} of {config.repeats}", min(0.2 + 0.8 * used, 1.0))
                self._sync(way, version, addresses, times[way])
        return times

    def _agreed(self, *, is_late: bool) -> tuple[bool, bool]:
        """Whether a signal came to any rank, and whether the first one's time is over."""
        every = from_all_ranks(lambda: (self.rank.stop.requested is not None, is_late))
        return any(is_stopped for is_stopped, _ in every), every[0][1]

    def _sync(self, way: SyncWay, version: int, addresses: list[dict[str, str]], times: WayTimes) -> None:
        """One sync, with other values than the one before."""
        if self.is_trainer:
            for tensor in self.tensors.values():
                tensor.neg_()
        dist.barrier()
        begun_s = time.perf_counter()
        prepare_s, results = 0.0, list[SyncResult]()
        if self.is_trainer:
            prepare_s = self._offer(way, version, addresses)
        else:
            results.append(
                pull_weights(
                    self._sources(way, addresses), self.engine, version, way, staging=self.staging, relay=self.relay,
                    wait_s=WAIT_S,
                )[1]
            )  # fmt: skip
        took_s = time.perf_counter() - begun_s
        num_wrong = sum(one.checksum != self.expected[version % 2] for one in results)
        every = from_all_ranks(lambda: (took_s, prepare_s, results, num_wrong))
        engines = every[self.config.num_trainers :]
        received = [one for _, _, own, _ in engines for one in own]
        times.times_s.append(max(one[0] for one in engines))
        times.prepare_s.append(max(one[1] for one in every))
        times.num_bytes = statistics.fmean(one.num_bytes for one in received)
        times.checksum = received[0].checksum
        times.num_wrong += sum(one[3] for one in engines)
        self.rank.watchdog.step_done(step=version, seconds_s=took_s, loss=None, flop_per_s=0.0)
        if way == "file" and self.rank.world.is_first:
            remove_old(self.folder, version)

    def _offer(self, way: SyncWay, version: int, addresses: list[dict[str, str]]) -> float:
        """A trainer rank's part; the seconds that it took before anything could be pulled."""
        assert self.server is not None
        config, begun_s = self.config, time.perf_counter()
        if way == "file":
            place = version_folder(self.folder, version)
            write_weights(
                self.folder, self.tensors, self.parts, version, rank=self.rank.world.rank,
                num_ranks=config.num_trainers, dtype=self.dtype,
            )  # fmt: skip
            page_cache.drop([weight_file(place, self.rank.world.rank)])
            return time.perf_counter() - begun_s
        self.server.publish(self.tensors, version)
        prepare_s = time.perf_counter() - begun_s
        if way == "broadcast" and self.rank.world.is_first and config.num_trainers > 1:
            servers = [one["server"] for one in addresses[: config.num_trainers]]
            self.relay.fill(Sources(addresses=servers, version=version, wait_s=WAIT_S))
        return prepare_s

    def _sources(self, way: SyncWay, addresses: list[dict[str, str]]) -> list[str]:
        config = self.config
        if way == "file":
            return [str(self.folder)]
        if way == "peers":
            return [one["server"] for one in addresses[: config.num_trainers]]
        if self.number:
            return [addresses[config.num_trainers + self.number - 1]["relay"]]
        return [addresses[0]["relay" if config.num_trainers > 1 else "server"]]

    def _row(self, way: SyncWay, times: WayTimes, rates: SyncRates, predicted_s: float) -> dict[str, Any]:
        config, time_s = self.config, statistics.median(times.times_s)
        rate = times.num_bytes / time_s
        return {
            "way": way, "num_trainers": config.num_trainers, "num_engine_ranks": config.num_engine_ranks,
            "tp": config.engine_tp, "num_engines": config.num_engines, "weights_bytes": self.weights_bytes,
            "bytes": times.num_bytes, "time_s": time_s, "time_low_s": min(times.times_s),
            "time_high_s": max(times.times_s), "repeats": len(times.times_s),
            "prepare_s": statistics.median(times.prepare_s), "bytes_per_s": rate,
            "link_bytes_per_s": rates.wire_bytes_per_s, "link_frac": rate / rates.wire_bytes_per_s,
            "predicted_s": predicted_s, "checksum": times.checksum, "num_wrong": times.num_wrong,
        }  # fmt: skip

    def _part(self, text: str, share_frac: float) -> None:
        self.rank.metrics.event(step=-1, name=EVENT_PART, detail=text, value=share_frac)


def named_sizes(config: SyncRun) -> dict[str, Size]:
    """Every weight of the model with its size."""
    with torch.device("meta"):
        model = Transformer(config.shape, layers=range(config.shape.layers), positions_L=torch.arange(1, device="cpu"))
    return {name: tuple(param.shape) for name, param in model.named_parameters()}
