"""What is fuzzed: for each kind of input a valid one in a folder, the files that are mutated, and how it is read."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from in_process import Called, call

from scalewright.records.documents import document, write_document

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "observe"), str(TESTS / "lint")]
OK = Called(code=0, out="", err="")


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzedInput:
    """A valid input. `read` reads all of it; the number chooses among several ways to read."""

    files: dict[Path, str]
    """Files that are mutated, each with its form."""
    read: Callable[[int], Called]
    make: Callable[[random.Random], bytes] | None = None
    """Makes an input of itself, for kinds that have many valid ones."""


def _json_or_not(number: int) -> tuple[str, ...]:
    """Every other answer as JSON, which is made faster than a page."""
    return ("--json",) if number % 2 else ()


def _package_file(package: str, name: str) -> Path:
    return Path(str(resources.files(package))) / name


def lint(folder: Path) -> FuzzedInput:
    """A job script, with `--json` and as text; every twentieth is mended as well."""
    from fuzzed import check, fuzzed_script

    path = folder / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nsrun python train.py\n")

    def read(number: int) -> Called:
        if number % 10 == 0:
            called = call("lint", str(path), *(() if number % 20 else ("--json",)))
            return replace(called, out="") if called.code == 2 else called  # it answers for the other files
        check(path.read_bytes(), fix=number % 20 == 1)
        return OK

    return FuzzedInput(files={path: "script"}, read=_refusing(read), make=fuzzed_script)


def study(folder: Path) -> FuzzedInput:
    path = folder / "quick.toml"
    shutil.copy(_package_file("scalewright.study", "studies/quick.toml"), path)
    commands = (("study", "check"), ("study", "check"), ("study", "check"), ("study", "predict"))
    return FuzzedInput(files={path: "toml"}, read=lambda n: call(*commands[n % len(commands)], str(path)))


def site(folder: Path) -> FuzzedInput:
    path = folder / "catalogue" / "sites" / "lumi.toml"
    path.parent.mkdir(parents=True)
    shutil.copy(_package_file("scalewright.sites", "profiles/lumi.toml"), path)

    def read(number: int) -> Called:
        from scalewright.sites.account_pattern import account_matches
        from scalewright.sites.loader import find_site

        extra = ("--catalog", str(folder / "catalogue"), *(() if number % 4 == 3 else ("--json",)))
        if number % 4 == 0:  # one broken file breaks no other site
            return call("site", "show", "leonardo", *extra)
        shown = call("site", "show", "lumi", *extra)
        if shown.code == 0:
            account_matches(find_site("lumi", folder / "catalogue").account.pattern, "a" * 60 + "!")
        return shown

    return FuzzedInput(files={path: "toml"}, read=read)


def catalogue(folder: Path) -> FuzzedInput:
    files: dict[Path, str] = {}
    for kind, name in (("models", "llama3-8b"), ("accelerators", "h100-sxm"), ("systems", "leonardo")):
        path = folder / "catalogue" / kind / f"{name}.toml"
        path.parent.mkdir(parents=True)
        shutil.copy(_package_file("scalewright.catalog", f"data/{kind}/{name}.toml"), path)
        files[path] = "toml"
    extra = ("--catalog", str(folder / "catalogue"))
    layout = ("--layout", "tp=4,dp=4,mbs=1,gbs=64", "--model", "llama3-8b", "--system", "leonardo")
    names = (("models", "llama3-8b"), ("accelerators", "h100-sxm"), ("systems", "leonardo"))
    commands = (
        *(("catalog", *name, "--json", *extra) for name in names), ("predict", *layout, "--json", *extra),
        *(("catalog", *name, *extra) for name in names), ("predict", *layout, *extra),
    )  # fmt: skip
    return FuzzedInput(files=files, read=lambda n: call(*commands[n % len(commands)]))


def hugging_face(folder: Path) -> FuzzedInput:
    path = folder / "config.json"
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip
    write_document(path, document("config", config))
    arguments = ("--layout", "tp=4,dp=4,mbs=1,gbs=64", "--model", str(path), "--system", "leonardo")
    return FuzzedInput(files={path: "json"}, read=lambda n: call("predict", *arguments, *_json_or_not(n)))


@cache
def _plan() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        made = call("plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "4", "--out", str(path))
        assert made.code == 0, made.err
        return path.read_bytes()


def plan(folder: Path) -> FuzzedInput:
    path = folder / "plan.json"
    path.write_bytes(_plan())
    options = ((), ("--all",), ("--json",), ("--json",))
    return FuzzedInput(files={path: "json"}, read=lambda n: call("plan-show", str(path), *options[n % 4]))


def run_directory(folder: Path) -> FuzzedInput:
    from run_maker import make_run

    directory = make_run(folder / "run")
    write_document(directory.machine, document("machine", {"peak_flop_per_s": 1e15, "num_ranks": 2}))
    files = dict.fromkeys(directory.path.glob("*.json"), "json")
    files |= dict.fromkeys(directory.events.glob("*.jsonl"), "lines")
    ways = (("report",), ("report", "--json"), ("explain",), ("report", "--json"), ("explain", "--json"))
    return FuzzedInput(files=files, read=lambda n: call(*ways[n % 5][:1], str(directory.path), *ways[n % 5][1:]))


def trace(folder: Path) -> FuzzedInput:
    from trace_maker import collective, kernel, launch, step, written

    events = [step(0, 40)]
    for start in range(0, 40, 4):
        events += [launch(start, start + 1), kernel(start, start + 3, link=start + 1), collective(start + 1, start + 4)]
    path = written(folder / "rank-0.json", events)
    return FuzzedInput(files={path: "json"}, read=lambda n: call("explain", str(path), *_json_or_not(n)))


def flight(folder: Path) -> FuzzedInput:
    shutil.copytree(TESTS / "golden" / "flight" / "gloo_stall", folder / "pickles")
    shutil.copytree(TESTS / "golden" / "flight" / "gloo_stall_json", folder / "json")
    files = dict.fromkeys((folder / "pickles").iterdir(), "bytes")
    files |= dict.fromkeys((folder / "json").iterdir(), "json")
    return FuzzedInput(
        files=files,
        read=lambda n: call("explain", str(folder / ("pickles" if n % 4 < 2 else "json")), *_json_or_not(n)),
    )


def log(folder: Path) -> FuzzedInput:
    path = folder / "train.log"
    content = (TESTS / "golden" / "logs" / "primus_llama_1b.log").read_bytes()
    path.write_bytes(content[:20_000])
    return FuzzedInput(files={path: "bytes"}, read=lambda n: call("explain", str(path), *_json_or_not(n)))


def calibration(folder: Path) -> FuzzedInput:
    from calibration_cases import CPU_VALUES
    from calibration_cases import calibration as made

    collective = {
        "op": "all_reduce", "backend": "gloo", "dtype": "float32", "num_ranks": 2, "num_nodes": 1, "from_bytes": 8,
        "to_bytes": 1 << 20, "alpha_s": 1e-4, "bytes_per_s": 1e9, "error_frac": 0.1, "num_points": 5,
    }  # fmt: skip
    residual = {"name": "host", "factor": 0.9, "low": 0.8, "high": 1.0}
    whole = made(*CPU_VALUES, collectives=(collective,), residuals=(residual,))
    path = folder / "made-up.json"
    write_document(path, whole.document())

    def read(_: int) -> Called:
        from scalewright.catalog.calibration import read as read_calibration
        from scalewright.catalog.library import open_catalog
        from scalewright.costs.machine.calibrated import machine_from_calibration
        from scalewright.costs.machine.collective_lines import measured_time_s

        machine = machine_from_calibration(open_catalog(), read_calibration(path))
        for size in (8.0, 1e6, 1e9):
            time_s = measured_time_s(
                machine.measured_collectives, op="all_reduce", size_bytes=size, num_ranks=4, num_nodes=1
            )
            assert not time_s < 0, f"negative time {time_s}"
        return OK

    return FuzzedInput(files={path: "json"}, read=_refusing(read))


def tokens(folder: Path) -> FuzzedInput:
    """A .npy file, and a pair of Megatron's."""
    import struct

    import numpy as np

    array, data, index = folder / "tokens.npy", folder / "set.bin", folder / "set.idx"
    np.save(array, np.arange(500, dtype=np.uint16) % 60)
    (np.arange(500, dtype="<u2") % 60).tofile(data)
    rows = np.array([200, 300], dtype="<i4").tobytes() + np.array([0, 400], dtype="<i8").tobytes()
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 2, 3)
    index.write_bytes(header + rows + np.array([0, 1, 2], dtype="<i8").tobytes())

    def read(number: int) -> Called:
        from scalewright.data.tokens.files import megatron_tokens, npy_tokens

        mapped = npy_tokens(array) if number % 2 else megatron_tokens(data)
        for start in range(0, mapped.num_tokens - 16, max(mapped.num_tokens // 20, 1)):
            mapped.read(start, start + 16).astype(np.int64)
        return OK

    return FuzzedInput(files=dict.fromkeys((array, data, index), "bytes"), read=_refusing(read))


def shards(folder: Path) -> FuzzedInput:
    """Ours, with an index; and the same tar files without, as another program writes them."""
    from scalewright.data.shards import ShardSamples
    from scalewright.data.writing import write_samples

    class Pictures:
        def __len__(self) -> int:
            return 12

        def read(self, index: int) -> tuple[bytes, int]:
            return b"\xff\xd8" + bytes(range(40 + index)) + b"\xff\xd9", index % 3

    ours, foreign = folder / "ours", folder / "foreign"
    write_samples(
        Pictures(), ours, to="shards", order=list(range(12)), classes=("a", "b", "c"), origin={"made": "here"},
        shard_bytes=1 << 14, expected_bytes=1000,
    )  # fmt: skip
    foreign.mkdir()
    for path in ours.glob("*.tar"):
        shutil.copy(path, foreign)

    def read(number: int) -> Called:
        samples = ShardSamples(ours if number % 2 else foreign)
        try:
            for index in range(min(len(samples), 100)):
                samples.read(index)
            for _ in samples.stream(0, min(len(samples), 100)):
                pass
        finally:
            samples.close()
        return OK

    files = dict.fromkeys((*ours.glob("*.tar"), *foreign.glob("*.tar"), ours / "index.npy"), "bytes")
    return FuzzedInput(files=files | {ours / "dataset.json": "json"}, read=_refusing(read))


def safetensors(folder: Path) -> FuzzedInput:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]}}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(128))

    def read(_: int) -> Called:
        from scalewright.run.generate.safetensor_files import TensorFolder

        for tensor in TensorFolder(folder).tensors.values():
            tensor.read()
        return OK

    return FuzzedInput(files={path: "bytes"}, read=_refusing(read))


def checkpoint(folder: Path) -> FuzzedInput:
    """Loaded by one rank. Half of the mutations are hidden from checksums and digest, as a hostile writer would."""
    import torch
    import torch.distributed as dist

    from scalewright.records.run_directory import RunDirectory
    from scalewright.run.checkpoint import Checkpointer

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    directory = RunDirectory(folder / "run")
    tensors = {"weight": torch.arange(64.0).view(8, 8), "bias": torch.ones(8)}
    saver = Checkpointer(directory, keep=2, layout="dp=1")
    final = saver.save(3, tensors, {"tokens": 5})

    def read(number: int) -> Called:
        if number % 2:
            _refresh_sums(final)
        loaded = Checkpointer(directory, keep=2, layout="dp=1").load_newest(tensors)
        assert loaded is None or loaded.manifest.step == 3, f"step {loaded.manifest.step} from a changed manifest"
        return OK

    forms = {"manifest.json": "json"}
    files = {path: forms.get(path.name, "bytes") for path in final.iterdir()}
    return FuzzedInput(files=files, read=_refusing(read))


def _refresh_sums(folder: Path) -> None:
    """Give a checkpoint the checksums of its files, and its manifest the digest of what it says."""
    from scalewright.records.documents import digest
    from scalewright.run.checkpoint_files import DIGEST, file_sum

    path = folder / "manifest.json"
    try:
        body = json.loads(path.read_bytes())
        for name, entry in body["files"].items():
            if (folder / name).is_file():
                file = file_sum(folder / name)
                entry["bytes"], entry["sha256"] = file.num_bytes, file.sha256
        content = {key: value for key, value in body.items() if key not in ("schema", DIGEST)}
        text = json.dumps({**body, DIGEST: digest(content)})
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        return
    path.write_text(text, encoding="utf-8")


def _refusing(read: Callable[[int], Called]) -> Callable[[int], Called]:
    """A refusal of a reader as the exit code that the command line makes of it."""
    from scalewright.errors import ScalewrightError

    def checked(number: int) -> Called:
        try:
            return read(number)
        except ScalewrightError as error:
            return Called(code=error.exit_code, out="", err=f"error: {error}\n")

    return checked


def words(folder: Path) -> FuzzedInput:
    """Options of `predict` and `plan` as people write them: layouts, requests, RL steps, what-ifs, budgets, counts."""
    from written_words import DEFAULT, fuzzed_words

    path = folder / "words.json"
    path.write_text(json.dumps(DEFAULT))

    def read(number: int) -> Called:
        called = call(*json.loads(path.read_text(encoding="utf-8", errors="surrogatepass")))
        lines = called.err.splitlines()
        assert called.code in (0, 1, 2), f"exit code {called.code}: {called.err[:300]}"
        is_sentence = len(lines) == 1 and lines[0].startswith("error: ")
        assert called.code < 2 or is_sentence, f"no one sentence: {called.err!r}"
        if called.out.startswith("{"):
            return called
        page, header, differences = called.out.partition("difference")  # which have a sign
        return replace(called, out=page + header + differences.replace(" -", " +"))

    return FuzzedInput(files={path: "words"}, read=read, make=fuzzed_words)


INPUTS: dict[str, Callable[[Path], FuzzedInput]] = {
    "lint": lint, "study": study, "site": site, "catalogue": catalogue, "config": hugging_face, "plan": plan,
    "run": run_directory, "trace": trace, "flight": flight, "log": log, "calibration": calibration,
    "tokens": tokens, "shards": shards, "safetensors": safetensors, "checkpoint": checkpoint,
    "words": words,
}  # fmt: skip
NEEDS_TORCH = ("safetensors", "checkpoint")
