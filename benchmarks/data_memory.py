"""Memory of a text pipeline by the size of its input: filters, all kinds of duplicates, shuffle, Parquet.

    python benchmarks/text_corpus.py corpus.jsonl
    python benchmarks/data_memory.py corpus.jsonl --sizes 1 2 5

Made text: the corpus again and again, each time with other letters for some consonants, so that every copy has new
words. The figures are the largest sums over all processes: of PSS, in which mapped files count, and of memory that
no file backs. Pages that only the kernel's cache holds are in neither.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

from process_tree import measured

HERE = Path(__file__).resolve().parent
CONSONANTS = b"ghjkmpqsvwz"
"""None of them is part of an escape of JSON, or of the keys."""
GIGABYTE = 1_000_000_000
PIPELINE = """schema = "scalewright.data-pipeline/1"
[read]
paths = ["in.jsonl"]
[normalise]
[[filter]]
rule = "gopher_quality"
[[filter]]
rule = "gopher_repetition"
[deduplicate]
url = true
near = {{}}
spans = 50
{more}[shuffle]
[write]
format = "{format}"
"""


def make_text(corpus: Path, target: Path, num_bytes: int) -> None:
    """At least `num_bytes` of JSON lines."""
    num_written, copy = 0, 0
    with target.open("wb") as out:
        while num_written < num_bytes:
            letters = list(CONSONANTS)
            random.Random(copy).shuffle(letters)
            table = bytes.maketrans(CONSONANTS, bytes(letters))
            with corpus.open("rb") as file:
                for line in file:
                    num_written += out.write(line.translate(table))
                    if num_written >= num_bytes:
                        return
            copy += 1


def newest_phase(work: Path) -> str:
    """The phase that began last."""
    try:
        plans = [(path.stat().st_mtime, path.parent.name) for path in work.glob("*/plan.json")]
    except OSError:
        return ""
    return max(plans)[1] if plans else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 2, 5], help="Gigabytes.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", default="", help="Write tokens for Megatron with it, instead of Parquet.")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "data_memory.jsonl", help="Lines are added.")
    options = parser.parse_args()
    tokens = f'[tokenise]\ntokenizer = "{Path(options.tokenizer).resolve()}"\n' if options.tokenizer else ""
    form = "megatron" if tokens else "parquet"
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.corpus.resolve().parent) as name:
            folder = Path(name)
            make_text(options.corpus, folder / "in.jsonl", int(size * GIGABYTE))
            (folder / "p.toml").write_text(PIPELINE.format(more=tokens, format=form))
            run = [sys.executable, "-m", "scalewright", "data", "run", str(folder / "p.toml"), "--json"]
            command = [*run, "--workers", str(options.workers), "--out", str(folder / "out")]
            row, output = measured(command, label=partial(newest_phase, folder / "out" / ".work"))
            result = json.loads(output)
        steps, phases = result["steps"], result["phases"]
        record = {
            "input_bytes": int(size * GIGABYTE), "num_workers": options.workers, "format": form, **row,
            "num_documents_read": steps["read"]["docs_in"], "num_documents": result["num_documents"],
            "num_shards": result["num_shards"], "phase_wall_s": {one["name"]: one["wall_s"] for one in phases},
        }  # fmt: skip
        with options.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
