"""Text pipelines compared on the same texts and steps: ours, a plain multiprocessing script, datatrove; also Daft.

    python benchmarks/text_corpus.py corpus.jsonl
    python benchmarks/data_pipeline.py corpus.jsonl tokenizer/tokenizer.json --engines OTHER_VENV/bin/python

Steps: Gopher's rules of quality, MinHash (16 bands of 6 hashes over 5-grams), tokens of the documents that stay.
Ours and the plain script run in turns; compare the best of each. Daft's script has no deduplication.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from process_tree import measured

HERE = Path(__file__).resolve().parent
SAME_STEPS = """schema = "scalewright.data-pipeline/1"
[read]
paths = ["{source}"]
chunk = "{chunk} B"
[[filter]]
rule = "gopher_quality"
[deduplicate]
exact = false
near = {{}}
[tokenise]
tokenizer = "{tokenizer}"
[write]
format = "megatron"
"""
MOST_CHUNK, LEAST_CHUNK = 32 * 2**20, 100_000


def tokenizer_rate(source: Path, tokenizer: str) -> float:
    """Bytes a second of the package itself on one core, best of three parts of the texts, in batches of 100."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    inner = Tokenizer.from_file(tokenizer)
    rates = []
    with source.open() as file:
        for _ in range(3):
            texts, num_bytes, seconds = [], 0, 0.0
            while num_bytes < 10_000_000 and (line := file.readline()):
                texts.append(json.loads(line)["text"])
                num_bytes += len(texts[-1].encode())
            for start in range(0, len(texts), 100):
                began_s = time.process_time()
                inner.encode_batch_fast(texts[start : start + 100], add_special_tokens=False)
                seconds += time.process_time() - began_s
            rates.append(num_bytes / seconds if seconds else 0.0)
    return max(rates)


def rates_of(result: dict[str, Any]) -> dict[str, float]:
    """Bytes of text that a core does in a second: of each step, and of the parts that several steps make up."""
    steps, phases = result["steps"], {one["name"]: one["cpu_s"] for one in result["phases"]}
    rates = {
        name: step["bytes_in"] / step["cpu_s"] for name, step in steps.items() if step["cpu_s"] and step["bytes_in"]
    }
    hash_s = steps.get("hash", {}).get("cpu_s", 0.0)
    rates["whole phase read + filter"] = steps["read"]["bytes_in"] / (phases["clean"] - hash_s)
    if "near" in phases:
        near_s = hash_s + sum(phases[name] for name in ("near", "verify", "mark-near"))
        rates["whole MinHash: hash, near, verify, mark"] = steps["hash"]["bytes_in"] / near_s
    return rates


def split(source: Path, folder: Path, num_parts: int) -> None:
    """A file for each worker of datatrove, before its time is taken."""
    folder.mkdir()
    with source.open() as file:
        parts = [(folder / f"{number}.jsonl").open("w") for number in range(num_parts)]
        for number, line in enumerate(file):
            parts[number % num_parts].write(line)
        for part in parts:
            part.close()


def compared(options: argparse.Namespace, work: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each run, in order, and the last result of ours."""
    source, tokenizer, num = options.source.resolve(), str(Path(options.tokenizer).resolve()), str(options.workers)
    chunk = min(max(source.stat().st_size // (4 * options.workers), LEAST_CHUNK), MOST_CHUNK)
    (work / "p.toml").write_text(SAME_STEPS.format(source=source, tokenizer=tokenizer, chunk=chunk))
    order = ["ours", "plain"] * options.repeats
    if options.engines:
        split(source, work / "in", options.workers)
        order[2:2] = options.others
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    for at, name in enumerate(order):
        out = str(work / f"{at}-{name}")
        if name == "ours":
            run = [sys.executable, "-m", "scalewright", "data", "run", str(work / "p.toml"), "--json"]
            row, output = measured([*run, "--workers", num, "--out", out])
            result = json.loads(output)
            counts = {key: result[key] for key in ("num_documents", "num_tokens")}
        else:
            python = sys.executable if name == "plain" else options.engines
            script = HERE / "data_engines" / ("plain.py" if name == "plain" else f"{name}_engine.py")
            given = str(work / "in") if name == "datatrove" else str(source)
            row, output = measured([python, str(script), given, tokenizer, out, num])
            counts = json.loads(output.splitlines()[-1]) if name != "daft" else {}
        rows.append({"name": name, **row, **counts, "load_average": os.getloadavg()[0]})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("tokenizer")
    parser.add_argument("--engines", default="", help="Python of an environment with datatrove and daft.")
    parser.add_argument("--others", nargs="*", default=["datatrove"], choices=["datatrove", "daft"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "data_pipeline.jsonl", help="A line is added.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.source.resolve().parent) as folder:
        rows, result = compared(options, Path(folder))
    record = {
        "input_bytes": options.source.stat().st_size, "num_workers": options.workers, "runs": rows,
        "bytes_per_core_s": rates_of(result),
        "tokenizers_bytes_per_core_s": tokenizer_rate(options.source, options.tokenizer),
    }  # fmt: skip
    with options.out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
