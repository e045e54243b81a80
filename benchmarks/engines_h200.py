"""Steps of other training programs on one GPU, beside our own trainer: each run is a row, written as soon as it ended.

    python benchmarks/engines_h200.py OUT.jsonl --wheels FOLDER [--engines deepspeed,trl,torchtitan] [--within 570]
    python benchmarks/engines_h200.py OUT.jsonl --device cpu --tiny [--python PATH]

Judged are Llamas of 350 million and 1.3 billion parameters, bf16, 2048 tokens, no activation checkpointing. No factor
is fitted to them: those come from the shapes that `calibrate --engine` runs
(src/scalewright/study/calibration/engine_points.py). engines_fit.py fits and judges; it needs the rows only. A run
that OUT.jsonl has already is not measured again, so that a second call goes on where time ended.

The machine itself is described by results/h200_calibration.json, measured on another board of the kind; our own
trainer's rows show how well that fits this board. torchtitan runs with torch.compile, as its published figures do, and
once without; the others run eagerly, as they do unless told otherwise.

`--wheels` is for a machine without a network: wheels are unpacked into a temporary folder and put on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = "SCALEWRIGHT_BENCH_UNPACKED"
BASE = ROOT / "benchmarks" / "results" / "h200_calibration.json"
STARTED_S = time.monotonic()
NEEDED_S = {"own": 40.0, "run": 28.0, "kernels": 40.0}
"""Time that must be left before a stage starts."""
HEAD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False}  # fmt: skip
JUDGED = {
    "llama-350m": (24, 1024, 16, 2816, 32000, 2048, 8),
    "llama-1.3b": (24, 2048, 16, 5504, 32000, 2048, 4),
}
TINY = {"llama-s": (3, 128, 4, 352, 512, 128, 2), "llama-m": (2, 256, 4, 704, 1024, 128, 2)}
"""Layers, width, heads, width of the feed-forward, vocabulary, tokens, micro-batch."""
FITTED, JUDGED_PART = "fitted", "judged"
ZERO = {"deepspeed": 1}
"""DeepSpeed keeps fp32 weights beside bf16 ones with ZeRO only; with one rank nothing is split."""


def known_runs(out: Path) -> set[tuple[str, ...]]:
    """Runs that the file has."""
    return {key_of(row) for row in rows_of(out) if row["kind"] in ("run", "own")}


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of a file; one whose writing was cut off is none."""
    rows = []
    for line in out.read_text().splitlines() if out.exists() else ():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["kind"] == "own":
        return "own", row["model"], row["compile"]
    return "run", row["engine"], row["model"], *row["settings"]


def config_of(sizes: tuple[int, ...]) -> dict[str, Any]:
    layers, hidden, heads, ffn, vocab, seq, _ = sizes
    return HEAD | {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": seq,
    }  # fmt: skip


def wrapper(path: Path) -> str:
    """An interpreter that has the wheels: runs of engines set a PYTHONPATH of their own."""
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{os.environ[UNPACKED]}" exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


class Bench:
    """The work folder, the rows so far, and the time that is left."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.arguments, self.work = arguments, work
        self.shapes = TINY if arguments.tiny else JUDGED
        self.num_steps = 9 if arguments.tiny else 16
        self.precision = "fp32" if arguments.device == "cpu" else "bf16"
        self.python = arguments.python or wrapper(work / "python")
        self.done = known_runs(arguments.out)
        self.is_cut_off = arguments.out.exists() and not arguments.out.read_bytes().endswith(b"\n")

    def left_s(self) -> float:
        return float(self.arguments.within) - (time.monotonic() - STARTED_S)

    def write(self, **row: Any) -> None:
        row["at_s"] = round(time.monotonic() - STARTED_S, 1)
        with self.arguments.out.open("a") as file:
            file.write(("\n" if self.is_cut_off else "") + json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.is_cut_off = False
        shown = {key: value for key, value in row.items() if key not in ("versions", "tail", "kernels")}
        print(json.dumps(shown), flush=True)

    def guarded(self, stage: str, work: Callable[[], None]) -> None:
        """A stage that fails is a row, and the next one starts."""
        try:
            work()
        except Exception:
            self.write(kind="failed", stage=stage, tail=traceback.format_exc()[-3000:])
            traceback.print_exc()

    def has_time(self, stage: str, **what: Any) -> bool:
        if self.arguments.tiny or self.left_s() >= NEEDED_S[stage]:
            return True
        self.write(kind="skipped", stage=stage, left_s=round(self.left_s(), 1), **what)
        return False

    def is_due(self, stage: str, **what: Any) -> bool:
        """Whether a run is neither known nor too long for the time that is left."""
        return key_of({"kind": stage, **what}) not in self.done and self.has_time(stage, **what)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run scalewright's own command line, and keep the end of what it says if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "scalewright", *words], capture_output=True, text=True, cwd=self.work, check=False,
            timeout=max(self.left_s() + 20.0, 60.0) if not self.arguments.tiny else None,
        )  # fmt: skip
        if done.returncode:
            self.write(
                kind="failed", command=" ".join(words), rc=done.returncode, tail=(done.stdout + done.stderr)[-4000:]
            )
            print(done.stderr[-1500:], flush=True)
        return done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--engines", default="deepspeed,trl,torchtitan")
    parser.add_argument("--within", type=float, default=570.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--python", default="")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    if UNPACKED not in os.environ:
        start_again(arguments)
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        os.environ["SCALEWRIGHT_HOME"] = str(Path(folder) / "home")
        measure(Bench(arguments, Path(folder)))


def start_again(arguments: argparse.Namespace) -> None:
    """This program once more, in an environment that has the wheels and the sources."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    folder = tempfile.mkdtemp(prefix="wheels-")
    if arguments.wheels is not None:
        for wheel in sorted(arguments.wheels.glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(folder)
        paths.insert(1, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ[UNPACKED] = folder
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.execv(sys.executable, [sys.executable, *sys.argv])


def measure(bench: Bench) -> None:
    """Judged runs come first: factors can still be fitted to runs of another call."""
    from scalewright.engines.environment import releases

    write_base(bench)
    versions = releases(bench.python)
    bench.write(kind="versions", versions=versions, device=bench.arguments.device, gpu=gpu())
    engines = bench.arguments.engines.split(",")
    for engine in engines:
        for name, sizes in bench.shapes.items():
            bench.guarded(engine, partial(run, bench, engine, name, sizes, part=JUDGED_PART))
    for compiled in ("off",) if bench.arguments.device == "cpu" else ("graphs",):
        for model in bench.shapes:
            bench.guarded("own", partial(own, bench, model, compiled))
    for engine in engines:
        for name, sizes in fitted_shapes(bench).items():
            bench.guarded(engine, partial(run, bench, engine, name, sizes, part=FITTED))
    if bench.arguments.device == "cuda":
        measure_more(bench, engines)
    bench.guarded("fit", partial(judge, bench))


def measure_more(bench: Bench, engines: Sequence[str]) -> None:
    """What helps to explain the rest, if there is time."""
    for name, sizes in bench.shapes.items():
        if "torchtitan" in engines:
            eager = ("compile.enable=false",)
            bench.guarded("eager", partial(run, bench, "torchtitan", name, sizes, part=JUDGED_PART, settings=eager))
        bench.guarded("own", partial(own, bench, name, "off"))
    if bench.has_time("kernels"):
        bench.guarded("kernels", partial(kernels, bench))


def fitted_shapes(bench: Bench) -> dict[str, tuple[int, ...]]:
    """The shapes that factors are fitted to, by their names."""
    from scalewright.study.calibration.engine_points import engine_points

    return {
        one.name: (one.layers, one.hidden, one.heads, one.ffn, one.vocab, one.seq, one.batch)
        for one in engine_points(bench.arguments.device)
    }


def judge(bench: Bench) -> None:
    """The errors of all rows so far, printed and not stored: engines_fit.py gives them at any time."""
    from engines_fit import judged

    from scalewright.catalog import calibration as calibrations
    from scalewright.catalog.library import open_catalog

    base = calibrations.load(calibrations.names()[0])
    print(json.dumps(judged(open_catalog(), base, rows_of(bench.arguments.out)), indent=1), flush=True)


def gpu() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {}
    return {"name": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}


def write_base(bench: Bench) -> None:
    """The calibration of a board of this kind, as that of this machine; on a CPU a made-up one."""
    from scalewright.catalog import calibration as calibrations
    from scalewright.here.place import fingerprint_here, versions_here

    fingerprint, versions = fingerprint_here(bench.arguments.device), versions_here()
    body = json.loads(BASE.read_text())
    if bench.arguments.device == "cpu":
        body |= {"base": "laptop", "partition": "local", "steps": [], "residuals": [], "convolutions": [],
                 "language_interval": None, "vision_interval": None, "values": cpu_values()}  # fmt: skip
    body |= {"fingerprint": fingerprint.model_dump(), "versions": body["versions"] | versions}
    calibrations.write(calibrations.Calibration.model_validate(body))


def cpu_values() -> list[dict[str, Any]]:
    rates = {"matmul_flop_per_s": ("fp32", 5e10), "best_matmul_flop_per_s": ("fp32", 6e10),
             "memory_bytes_per_s": ("", 1e10), "dispatch_s": ("eager", 5e-6)}  # fmt: skip
    return [
        {"name": name, "of": of, "value": number, "low": number, "high": number, "num_rows": 1, "runs": ["made-up"]}
        for name, (of, number) in rates.items()
    ]


def own(bench: Bench, model: str, compiled: str) -> None:
    """Our own trainer on the shape, as `bench language` runs it."""
    if not bench.is_due("own", model=model, compile=compiled):
        return
    path, begun_s, batch = bench.work / f"own-{model}-{compiled}", time.monotonic(), bench.shapes[model][-1]
    done = bench.command(
        "bench", "language", "--model", str(model_file(bench, model, bench.shapes[model])), "--layout",
        f"mbs={batch},gbs={batch}", "--steps", str(bench.num_steps), "--compile", compiled, "--device",
        bench.arguments.device, "--run-dir", str(path), "--json",
    )  # fmt: skip
    if done.returncode == 0:
        bench.write(
            kind="own", model=model, compile=compiled, sizes=bench.shapes[model], **measured(path),
            **stored_prediction(path), took_s=round(time.monotonic() - begun_s, 1),
        )  # fmt: skip


def model_file(bench: Bench, name: str, sizes: tuple[int, ...]) -> Path:
    path = bench.work / "models" / name / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config_of(sizes)))
    return path


def measured(path: Path) -> dict[str, Any]:
    """Median of the steady steps of a run directory, and its peak of memory."""
    import numpy as np

    from scalewright.observe.collect import collect
    from scalewright.records import metric_names as names
    from scalewright.records.run_directory import RunDirectory

    run = collect(RunDirectory(path))
    times_s, memory = run.series(names.STEP_TIME, slowest=True), run.series(names.PEAK_MEMORY, slowest=True)
    return {
        "measured_s": float(np.median(times_s)), "low_s": float(times_s.min()), "high_s": float(times_s.max()),
        "num_steps": int(times_s.size), "memory_bytes": float(memory.max()) if memory.size else None,
    }  # fmt: skip


def stored_prediction(path: Path) -> dict[str, Any]:
    from scalewright.records.run_directory import RunDirectory

    file = RunDirectory(path).prediction
    if not file.exists():
        return {}
    body = json.loads(file.read_text())
    return {"predicted_s": body["step_time_s"], "predicted_memory_bytes": body["memory_bytes"],
            "stack": body["input"]["stack"]}  # fmt: skip


def run(
    bench: Bench, engine: str, name: str, sizes: tuple[int, ...], *, part: str, settings: tuple[str, ...] = ()
) -> None:
    """One run of an engine, as `bench engine` does it. The row has what was measured and what was run, nothing that
    could fail to be computed."""
    if not bench.is_due("run", engine=engine, model=name, settings=list(settings)):
        return
    path, begun_s = bench.work / f"{engine}-{name}{'-set' if settings else ''}", time.monotonic()
    layout, precision = f"mbs={sizes[-1]},gbs={sizes[-1]},zero={ZERO.get(engine, 0)}", bench.precision
    done = bench.command(
        "bench", "engine", engine, "--model", str(model_file(bench, name, sizes)), "--layout", layout, "--steps",
        str(bench.num_steps), "--precision", precision, "--device", bench.arguments.device, "--run-dir", str(path),
        "--python", bench.python, *(word for setting in settings for word in ("--set", setting)), "--json",
    )  # fmt: skip
    if done.returncode == 0:
        bench.write(
            kind="run", part=part, engine=engine, model=name, sizes=sizes, settings=list(settings), layout=layout,
            precision=precision, device=bench.arguments.device, release=release_of(path),
            took_s=round(time.monotonic() - begun_s, 1), **measured(path),
        )  # fmt: skip


def release_of(path: Path) -> str:
    return str(json.loads((path / "config.json").read_text()).get("version", ""))


KINDS = {
    "product": ("gemm", "nvjet", "cutlass", "sm90_xmma", "gemv"),
    "attention": ("flash", "fmha", "cudnn_generated", "attention"),
    "optimizer": ("adam", "multi_tensor", "foreach"),
    "softmax": ("softmax", "nll_loss", "cross_entropy"),
    "norm": ("reduce", "norm"),
    "copy": ("memcpy", "memset", "copy"),
}
"""Words in the names of kernels, the first kind that matches."""


def kernels(bench: Bench) -> None:
    """Time of one step of a Hugging Face Llama by kinds of kernels: under autocast, and with 16-bit weights."""
    for name, sizes in bench.shapes.items():
        for way in ("autocast", "bf16"):
            profile_step(bench, name, sizes, way)


def profile_step(bench: Bench, name: str, sizes: tuple[int, ...], way: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**config_of(sizes))
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if way == "bf16" else torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, sizes[4], (sizes[6], sizes[5] + 1), device="cuda")

    def steps(num: int) -> None:
        for _ in range(num):
            with torch.autocast("cuda", torch.bfloat16, enabled=way == "autocast"):
                logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()

    steps(3)
    begun_s = time.perf_counter()
    steps(3)
    step_s = (time.perf_counter() - begun_s) / 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps(1)
    write_kernels(bench, profile, model=name, way=way, step_s=step_s)
    torch.cuda.empty_cache()


def write_kernels(bench: Bench, profile: Any, **what: Any) -> None:
    times_s: dict[str, float] = {}
    names: dict[str, list[float]] = {}
    for event in profile.events():
        seconds = float(event.device_time) * 1e-6
        if seconds <= 0:
            continue
        lowered = event.name.lower()
        kind = next((kind for kind, words in KINDS.items() if any(word in lowered for word in words)), "elementwise")
        times_s[kind] = times_s.get(kind, 0.0) + seconds
        names.setdefault(event.name[:100], []).append(seconds)
    longest = sorted(((sum(all_s), len(all_s), name) for name, all_s in names.items()), reverse=True)[:25]
    bench.write(
        kind="kernels",
        **what,
        kinds_s=times_s,
        num_kernels=sum(len(v) for v in names.values()),
        kernels=[{"name": name, "num": num, "total_s": total_s} for total_s, num, name in longest],
    )


if __name__ == "__main__":
    main()
