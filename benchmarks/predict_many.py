"""A grid of predictions through `sw.predict_many`, beside the same predictions one by one.

    python benchmarks/predict_many.py [--rows 1000]

Prints the seconds of both, their ratio, and how long importing the package takes. One by one is timed on a tenth of
the rows. Both read the catalogue first, so that neither pays for its files.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import scalewright as sw

IMPORT = "import time; t = time.perf_counter(); import scalewright; print(time.perf_counter() - t)"


def grid_layouts(num_rows: int) -> list[str]:
    texts = sw.layouts(
        tp=[1, 2, 4, 8], pp=[1, 2, 4, 8], mbs=[1, 2, 4], zero=[0, 1, 2, 3], sp=[0, 1],
        recompute=["none", "selective", "full"], gbs=1024, gpus=256,
    )  # fmt: skip
    return texts[:num_rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1000, help="predictions in the grid")
    rows = parser.parse_args().rows
    texts = grid_layouts(rows)
    usable = [
        t
        for t, p in zip(
            texts, sw.predict_many(model="llama3-8b", system="leonardo", layout=texts).problems, strict=True
        )
        if not p
    ]
    times = []
    for _ in range(3):
        started = time.perf_counter()
        sw.predict_many(model="llama3-8b", system="leonardo", layout=texts)
        times.append(time.perf_counter() - started)
    many_s = statistics.median(times)
    some = usable[:: max(len(usable) // 100, 1)]
    started = time.perf_counter()
    for text in some:
        sw.predict(model="llama3-8b", system="leonardo", layout=text)
    single_s = (time.perf_counter() - started) / len(some)
    imports = [
        float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"predict_many: {len(texts)} rows, {len(usable)} usable: {many_s:.3f} s")
    print(f"predict:      {single_s * 1e3:.2f} ms each; the grid is {single_s * len(texts) / many_s:.0f} times faster")
    print(f"import:       {statistics.median(imports) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
