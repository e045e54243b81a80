"""Text pipelines compared: ours, a plain multiprocessing script, Daft and datatrove, on the same texts and steps.

    python benchmarks/data_pipeline.py texts.jsonl tokenizer/tokenizer.json --engines OTHER_VENV/bin/python

Processor time decides, as other work may share the machine; wall time is stored beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PIPELINE = """schema = "scalewright.data-pipeline/1"
[read]
paths = ["{source}"]
chunk = "{chunk} B"
[[filter]]
rule = "gopher_quality"
[deduplicate]
near = {{}}
[tokenise]
tokenizer = "{tokenizer}"
[write]
format = "megatron"
"""


def measured(command: list[str]) -> dict[str, float]:
    """Wall and processor seconds of a command and its children."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return {"wall_s": wall_s, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def tokenizer_rate(source: Path, tokenizer: str) -> float:
    """Bytes a second of processor time of the package itself, in one batch."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    texts = [json.loads(line)["text"] for line in source.open()]
    inner, began_s = Tokenizer.from_file(tokenizer), time.process_time()
    inner.encode_batch_fast(texts, add_special_tokens=False)
    return sum(len(text.encode()) for text in texts) / (time.process_time() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("tokenizer")
    parser.add_argument("--engines", default="", help="Python of an environment with daft and datatrove.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "data_pipeline.json")
    options = parser.parse_args()
    source, tokenizer = options.source.resolve(), str(Path(options.tokenizer).resolve())
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        chunk = max(source.stat().st_size // (4 * options.workers), 100_000)
        (work / "p.toml").write_text(PIPELINE.format(source=source, tokenizer=tokenizer, chunk=chunk))
        run = [
            sys.executable,
            "-m",
            "scalewright",
            "data",
            "run",
            str(work / "p.toml"),
            "--workers",
            str(options.workers),
        ]
        engines: dict[str, list[str]] = {
            "plain": [sys.executable, str(HERE / "data_engines" / "plain.py")],
            **{
                name: [options.engines, str(HERE / "data_engines" / f"{name}_engine.py")]
                for name in ("daft", "datatrove")
                if options.engines
            },
        }
        rows["ours"] = measured([*run, "--out", str(work / "ours")])
        for name, command in engines.items():
            rows[name] = measured([*command, str(source), tokenizer, str(work / name), str(options.workers)])
            print(name, rows[name], flush=True)
        rows["ours again"] = measured([*run, "--out", str(work / "again")])
        result = json.loads((work / "again" / "data.json").read_text())
    steps = {
        name: step["bytes_in"] / step["cpu_s"]
        for name, step in result["steps"].items()
        if step["cpu_s"] and step["bytes_in"]
    }
    document = {
        "input_bytes": source.stat().st_size, "num_workers": options.workers, "engines": rows,
        "bytes_per_core_s": steps, "tokenizers_bytes_per_core_s": tokenizer_rate(source, tokenizer),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
