"""Text that one core does in a second in every step of a pipeline, measured on a corpus with two workers.

    python benchmarks/text_corpus.py corpus.jsonl
    python benchmarks/data_rates.py corpus.jsonl tokenizer/tokenizer.json

Processor time of the step divides the bytes that reach it. Steps come one after the other, so each sees what the
steps before it left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from data_pipeline import rates_of, tokenizer_rate

HERE = Path(__file__).resolve().parent
ALL_STEPS = """schema = "scalewright.data-pipeline/1"
[read]
paths = ["{source}"]
[normalise]
[[filter]]
rule = "gopher_quality"
[[filter]]
rule = "gopher_repetition"
[[filter]]
rule = "fineweb"
[[filter]]
rule = "language"
languages = ["en"]
[deduplicate]
url = true
near = {{}}
spans = 50
[decontaminate]
paths = ["benchmark.jsonl"]
[tokenise]
tokenizer = "{tokenizer}"
[pack]
sequence = 2048
[shuffle]
[write]
format = "{form}"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("tokenizer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "data_rates.jsonl", help="A line is added.")
    options = parser.parse_args()
    source, tokenizer = options.source.resolve(), Path(options.tokenizer).resolve()
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        folder = Path(name)
        with source.open() as file:
            (folder / "benchmark.jsonl").write_text("".join(file.readline() for _ in range(20)))
        (folder / "p.toml").write_text(ALL_STEPS.format(source=source, tokenizer=tokenizer, form="npy"))
        run = [sys.executable, "-m", "scalewright", "data", "run", "p.toml", "--json", "--out", "out"]
        done = subprocess.run(
            [*run, "--workers", str(options.workers)], cwd=folder, capture_output=True, text=True, check=True
        )
    result = json.loads(done.stdout)
    phases = {one["name"]: one["cpu_s"] for one in result["phases"]}
    rates = rates_of(result)
    kept_bytes = result["steps"]["tokenise"]["bytes_in"]
    rates["whole spans: compare and cut"] = result["steps"]["cut repeated spans"]["bytes_in"] / (
        phases["spans"] + phases["cuts"] + result["steps"]["cut repeated spans"]["cpu_s"]
    )
    rates["write"] = kept_bytes / phases["write"]
    record = {
        "input_bytes": source.stat().st_size, "num_workers": options.workers, "bytes_per_core_s": rates,
        "tokenizers_bytes_per_core_s": tokenizer_rate(source, str(tokenizer)), "load_average": os.getloadavg()[0],
        "documents": {name: [step["docs_in"], step["docs_out"]] for name, step in result["steps"].items()},
    }  # fmt: skip
    with options.out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
