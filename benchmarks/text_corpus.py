"""Real text of this machine as JSON lines: documentation, manual pages, licences, Python sources and headers.

    python benchmarks/text_corpus.py corpus.jsonl --size "250 MB"

A document is a file. Their order follows from a hash of their paths, so that every part of the corpus is alike.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scalewright import units

ROOTS = ("/usr/share", "/usr/lib/python3", f"/usr/lib/python3.{sys.version_info.minor}", "/usr/include", sys.prefix)
NAMES = ("copyright", "README", "NEWS", "AUTHORS")
SUFFIXES = (".txt", ".md", ".rst", ".py", ".pyi", ".h", ".hpp", ".c", ".pod", ".html", ".tex", ".texi", ".el", ".pm")
SECTIONS = tuple(f".{number}" for number in range(1, 9))
"""Endings of manual pages."""
MOST_BYTES = 2_000_000
LEAST_BYTES = 200


def kind_of(path: Path) -> str:
    """The ending by which a file counts as text; empty for others."""
    name = path.name.removesuffix(".gz")
    if name in NAMES or name.startswith("changelog"):
        return "documentation"
    if name.endswith(SECTIONS) and "man" in path.parts:
        return "man"
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def paths_in(roots: list[str]) -> list[Path]:
    """Every file that may be text, once, in an order that is the same on every run."""
    paths = {
        Path(folder) / name
        for root in roots
        for folder, _, names in os.walk(root)
        for name in names
        if kind_of(Path(folder) / name)
    }
    return sorted(paths, key=lambda path: hashlib.blake2b(str(path).encode(), digest_size=8).digest())


def texts_of(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    for path in paths:
        if path.is_symlink() or not path.is_file():
            continue
        try:
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
            text = content.decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            continue
        if LEAST_BYTES <= len(content) <= MOST_BYTES and "\0" not in text:
            yield path, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="250 MB", help="Stop after so much text.")
    parser.add_argument("--roots", nargs="*", default=list(ROOTS))
    options = parser.parse_args()
    most_bytes = units.parse(options.size, units.BYTES)
    kinds: Counter[str] = Counter()
    num_documents = 0
    with options.out.open("w") as file:
        for path, text in texts_of(paths_in(options.roots)):
            kinds[kind_of(path)] += len(text.encode())
            num_documents += 1
            file.write(json.dumps({"text": text, "url": path.as_uri()}) + "\n")
            if kinds.total() >= most_bytes:
                break
    shares = ", ".join(f"{kind} {100 * num / kinds.total():.0f}%" for kind, num in kinds.most_common())
    print(f"{options.out}: {num_documents:,} documents, {units.format(kinds.total(), units.BYTES)} of text ({shares})")


if __name__ == "__main__":
    main()
