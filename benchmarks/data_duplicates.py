"""Recall and precision of near-duplicate search on planted pairs, judged by the exact Jaccard index of all documents.

    python benchmarks/text_corpus.py corpus.jsonl
    python benchmarks/data_duplicates.py corpus.jsonl

Documents are the words of real texts. Each gets a copy somewhere behind it, of which a number of words, drawn evenly
from few to many, are replaced, moved or left out. All pairs that share 5-grams are compared, so that likeness of the
texts themselves counts too. Recall: of the documents that an earlier one has an index of 0.8 or more with, those that
went. Precision: of the documents that went, those that a chain of such pairs joins to an earlier one.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from scalewright.data.text.execution.local import LocalBackend
from scalewright.data.text.execution.preparation import prepare_job
from scalewright.data.text.execution.run import run_job

HERE = Path(__file__).resolve().parent
NGRAM, THRESHOLD = 5, 0.8
LEAST_WORDS, MOST_WORDS = 60, 800
MOST_SHARED = 200
"""Documents with the same 5-gram, such as that of a licence, beyond which it proposes no pair; others still do."""
PIPELINE = """schema = "scalewright.data-pipeline/1"
[read]
paths = ["in.jsonl"]
[deduplicate]
exact = false
near = {}
[write]
format = "parquet"
"""


def words_of_texts(corpus: Path, num: int) -> list[list[str]]:
    texts = []
    with corpus.open() as file:
        for line in file:
            words = re.findall(r"[a-z0-9]+", json.loads(line)["text"].lower())[:MOST_WORDS]
            if len(words) >= LEAST_WORDS:
                texts.append(words)
            if len(texts) == num:
                break
    return texts


def changed(words: list[str], rng: random.Random) -> list[str]:
    """A copy with up to 1 in 25 of its words changed."""
    copy = words.copy()
    for _ in range(max(1, round(rng.uniform(0, 0.04) * len(copy)))):
        at = rng.randrange(len(copy))
        match rng.randrange(3):
            case 0:
                copy[at] = f"x{rng.randrange(10**9)}"
            case 1:
                copy.insert(rng.randrange(len(copy)), copy.pop(at))
            case _:
                del copy[at]
    return copy


def ngrams(words: list[str]) -> set[int]:
    return {hash(tuple(words[at : at + NGRAM])) for at in range(len(words) - NGRAM + 1)}


def compared(grams: list[set[int]]) -> tuple[list[float], list[int]]:
    """The largest Jaccard index of each document with an earlier one, and the first document of its chain."""
    holders: dict[int, list[int]] = defaultdict(list)
    largest, first = [], list(range(len(grams)))

    def root(number: int) -> int:
        while first[number] != number:
            number = first[number]
        return number

    for number, own in enumerate(grams):
        shared: Counter[int] = Counter()
        for gram in own:
            before = holders[gram]
            if len(before) < MOST_SHARED:
                shared.update(before)
                before.append(number)
        indices = {one: len(own & grams[one]) / len(own | grams[one]) for one, count in shared.items() if count > 1}
        largest.append(max(indices.values(), default=0.0))
        for one in [one for one, value in indices.items() if value >= THRESHOLD]:
            ends = sorted((root(one), root(number)))
            first[ends[1]] = ends[0]
    return largest, [root(number) for number in range(len(grams))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "data_duplicates.jsonl", help="A line is added.")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    firsts = words_of_texts(options.corpus, options.documents)
    placed = [(rng.random(), words) for words in firsts]
    placed += [(rng.uniform(place, 1.0), changed(words, rng)) for place, words in placed]
    documents = [words for _, words in sorted(placed, key=lambda one: one[0])]
    largest, first = compared([ngrams(words) for words in documents])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = ({"text": " ".join(words), "url": str(number)} for number, words in enumerate(documents))
        (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "p.toml").write_text(PIPELINE)
        result = run_job(prepare_job(folder / "p.toml", out=folder / "out"), LocalBackend(1))
        import pyarrow.parquet as pq

        kept = {
            int(url) for path in (folder / "out").glob("*.parquet") for url in pq.read_table(path)["url"].to_pylist()
        }
    dropped = [number not in kept for number in range(len(documents))]
    alike = [value >= THRESHOLD for value in largest]
    found = sum(one and other for one, other in zip(dropped, alike, strict=True))
    right = sum(one and first[number] < number for number, one in enumerate(dropped))
    record = {
        "num_documents": len(documents), "num_alike": sum(alike), "num_dropped": sum(dropped),
        "recall_frac": found / sum(alike), "precision_frac": right / sum(dropped), "seed": options.seed,
        "num_pairs": result["clusters"]["num_pairs"], "num_verified": result["clusters"]["num_verified"],
        "recall_by_index": {
            f"{low / 100:.2f}": sum(dropped[n] for n in inside) / len(inside)
            for low in range(60, 101, 5)
            if (inside := [n for n, value in enumerate(largest) if low / 100 <= value < (low + 5) / 100])
        },
    }  # fmt: skip
    with options.out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
