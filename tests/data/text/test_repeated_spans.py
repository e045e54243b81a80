"""Runs of words that an earlier place has are cut out, and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from text_cases import made_text, run_pipeline, write_pipeline, write_rows, written_rows

from scalewright.errors import ConfigError

LEAST = 20
TEXTS = [made_text(number) for number in range(4)]


def rows(texts: list[str]) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


def test_repeated_paragraphs_are_cut_from_later_documents(tmp_path: Path) -> None:
    footer = made_text(900, num_words=40)
    texts = [
        f"{TEXTS[0]}\n\n{footer}",
        f"{TEXTS[1]}\n\n{footer}\n\n{TEXTS[2]}",
        footer,
        f"short one\n\n{TEXTS[3]}",
        "short one",
    ]
    write_rows(tmp_path / "in.jsonl", rows(texts))
    result = run_pipeline(write_pipeline(tmp_path, 'chunk = "900 B"\n[deduplicate]\nspans = 20'), tmp_path / "out")
    kept = [row["text"] for row in written_rows(tmp_path / "out")]
    assert kept == [texts[0], f"{TEXTS[1]}\n\n{TEXTS[2]}", texts[3], texts[4]]
    assert result["steps"]["cut repeated spans"]["reasons"] == {"only repeated spans": 1}


def planted(seed: int) -> list[list[str]]:
    """Documents of words of their own, with pieces of each other and of themselves."""
    rng = random.Random(seed)
    documents: list[list[str]] = []
    for number in range(12):
        words = [f"w{seed}x{number}x{at}" for at in range(rng.randrange(10, 150))]
        for _ in range(rng.randrange(4)):
            source = rng.choice([*documents, words])
            start = rng.randrange(max(len(source) - LEAST, 1))
            piece = source[start : start + rng.randrange(LEAST // 2, 3 * LEAST)]
            at = rng.randrange(len(words) + 1)
            words[at:at] = [word.upper() for word in piece] if rng.random() < 0.5 else piece
        documents.append(words)
    return documents


def without_repeats(documents: list[list[str]]) -> list[str]:
    """By hand: every word in a run of LEAST words that an earlier place has, goes."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for words in documents:
        covered = [False] * len(words)
        for at in range(len(words) - LEAST + 1):
            run = tuple(word.lower() for word in words[at : at + LEAST])
            if run in seen:
                covered[at : at + LEAST] = [True] * LEAST
            seen.add(run)
        kept.append(" ".join(word for word, is_out in zip(words, covered, strict=True) if not is_out))
    return [text for text in kept if text]


@pytest.mark.parametrize("seed", range(6))
def test_exactly_the_words_of_repeated_runs_go(tmp_path: Path, seed: int) -> None:
    documents = planted(seed)
    write_rows(tmp_path / "in.jsonl", rows([" ".join(words) for words in documents]))
    tables = f'chunk = "2 kB"\n[deduplicate]\nexact = false\nspans = {LEAST}'
    run_pipeline(write_pipeline(tmp_path, tables), tmp_path / "out")
    assert [row["text"] for row in written_rows(tmp_path / "out")] == without_repeats(documents)


def test_a_run_that_is_a_little_too_short_stays_beside_one_that_goes(tmp_path: Path) -> None:
    words = TEXTS[0].split()
    near_miss = " ".join([*words[: LEAST - 1], "other"])
    texts = [TEXTS[0], near_miss, f"{near_miss} {TEXTS[1]}", f"own {TEXTS[1]}"]
    write_rows(tmp_path / "in.jsonl", rows(texts))
    run_pipeline(write_pipeline(tmp_path, f"[deduplicate]\nspans = {LEAST}"), tmp_path / "out")
    assert [row["text"] for row in written_rows(tmp_path / "out")] == [texts[0], near_miss, TEXTS[1], "own"]


def test_workers_do_not_change_what_is_cut(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", rows([" ".join(words) for seed in range(4) for words in planted(seed // 2)]))
    path = write_pipeline(tmp_path, f'chunk = "4 kB"\n[deduplicate]\nspans = {LEAST}\nnear = {{}}')
    for num in (1, 2):
        run_pipeline(path, tmp_path / str(num), num_workers=num)
    one, two = ((tmp_path / str(num) / "shard-00000.jsonl.zst").read_bytes() for num in (1, 2))
    assert one == two


def test_spans_of_bytes_never_cut_a_character(tmp_path: Path) -> None:
    rng = random.Random(0)
    same = "".join(chr(rng.randrange(0x4E00, 0x9FA0)) for _ in range(60))
    texts = ["".join(chr(rng.randrange(0x4E00, 0x9FA0)) for _ in range(50)) for _ in range(3)]
    write_rows(tmp_path / "in.jsonl", rows([f"{texts[0]}{same}", f"{texts[1]}{same}{texts[2]}"]))
    path = write_pipeline(tmp_path, '[deduplicate]\nspans = 60\nspan_unit = "byte"')
    run_pipeline(path, tmp_path / "out")
    first, second = (row["text"] for row in written_rows(tmp_path / "out"))
    assert first == f"{texts[0]}{same}"
    assert second.replace(" ", "") == f"{texts[1]}{texts[2]}"


def test_spans_that_are_too_short_to_mean_anything_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", rows(TEXTS))
    with pytest.raises(ConfigError, match="use 8 or more"):
        run_pipeline(write_pipeline(tmp_path, "[deduplicate]\nspans = 3"), tmp_path / "out")


def test_anchors_in_many_runs_and_pairs_in_many_parts_give_the_same_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large task writes its anchors in several runs; which ones must not matter."""
    from scalewright.data.text.duplicates import span_anchors, span_cuts

    texts = [f"{made_text(number % 60)} {made_text(number + 500)}" for number in range(120)]
    write_rows(tmp_path / "in.jsonl", rows(texts))
    path = write_pipeline(tmp_path, "[deduplicate]\nspans = 20")
    run_pipeline(path, tmp_path / "one")
    monkeypatch.setattr(span_anchors, "RUN_ANCHORS", 5)
    monkeypatch.setattr(span_cuts, "MAX_PAIRS", 7)
    monkeypatch.setattr("scalewright.data.text.reading.documents.BATCH_CHARACTERS", 1000)
    run_pipeline(path, tmp_path / "many")
    assert written_rows(tmp_path / "one") == written_rows(tmp_path / "many")
    assert len(written_rows(tmp_path / "one")[100]["text"]) < len(texts[100])
