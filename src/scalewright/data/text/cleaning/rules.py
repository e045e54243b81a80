"""Filters by name: what each measures, its bounds, and the published sets of them.

Gopher: Rae et al. 2021 (arXiv:2112.11446), appendix A.1.1. C4: Raffel et al. 2020 (arXiv:1910.10683), section 2.2.
FineWeb: Penedo et al. 2024 (arXiv:2406.17557), section 3.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.cleaning import measures as m
from scalewright.data.text.cleaning.text_view import TextView
from scalewright.data.text.pipeline_file import FilterStep
from scalewright.errors import ConfigError

INFINITY = float("inf")
NOTHING = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A measure of a document and the range that keeps it."""

    name: str
    measure: Callable[[TextView], m.Values]
    minimum: float = -INFINITY
    maximum: float = INFINITY

    def broken(self, view: TextView) -> tuple[NDArray[np.bool_], m.Values]:
        """Which documents are outside, and the values."""
        values = self.measure(view)
        return (values < self.minimum) | (values > self.maximum), values

    def words(self, value: float) -> str:
        """Why a document with that value is left out."""
        if value < self.minimum:
            return f"{self.name} {value:.4g} < {self.minimum:g}"
        return f"{self.name} {value:.4g} > {self.maximum:g}"


SINGLE = {
    "length": Bound(name="characters", measure=m.characters, minimum=200, maximum=1_000_000),
    "words": Bound(name="words", measure=m.words, minimum=50, maximum=100_000),
    "word_length": Bound(name="word length", measure=m.word_length, minimum=3, maximum=10),
    "symbols": Bound(name="symbols per word", measure=m.symbols_per_word, maximum=0.1),
    "lines": Bound(name="bullet lines", measure=m.bullet_lines_frac, maximum=0.9),
    "alphabetic": Bound(name="words with a letter", measure=m.alphabetic_words_frac, minimum=0.8),
    "stop_words": Bound(name="stop words", measure=m.stop_words, minimum=2),
    "repeated_lines": Bound(name="repeated lines", measure=m.repeated_lines_frac, maximum=0.3),
    "repeated_ngrams": Bound(name="repeated 5-grams", measure=m.repeated_ngram_frac(5), maximum=0.15),
    "end_of_line": Bound(name="lines with an end mark", measure=m.ended_lines_frac, minimum=0.12),
    "short_lines": Bound(name="short lines", measure=m.short_lines_frac, maximum=0.67),
    "braces": Bound(name="braces", measure=m.has_text(b"{"), maximum=0),
    "placeholder": Bound(name="lorem ipsum", measure=m.has_text(b"lorem ipsum"), maximum=0),
}
"""Rules that are one measure; a pipeline file may set their bounds."""
SETS: dict[str, tuple[Bound, ...]] = {
    "gopher_quality": (
        *(SINGLE[name] for name in ("words", "word_length", "symbols", "lines")),
        Bound(name="lines ending in an ellipsis", measure=m.ellipsis_lines_frac, maximum=0.3),
        SINGLE["alphabetic"],
        SINGLE["stop_words"],
    ),
    "gopher_repetition": (
        SINGLE["repeated_lines"],
        Bound(name="repeated paragraphs", measure=m.repeated_paragraphs_frac, maximum=0.3),
        Bound(name="characters in repeated lines", measure=m.repeated_line_characters_frac, maximum=0.2),
        Bound(name="characters in repeated paragraphs", measure=m.repeated_paragraph_characters_frac, maximum=0.2),
        *(
            Bound(name=f"top {num}-gram", measure=m.top_ngram_frac(num), maximum=most)
            for num, most in ((2, 0.20), (3, 0.18), (4, 0.16))
        ),
        *(
            Bound(name=f"repeated {num}-grams", measure=m.repeated_ngram_frac(num), maximum=most)
            for num, most in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
        ),
    ),
    "fineweb": (
        SINGLE["end_of_line"],
        Bound(name="characters in repeated lines", measure=m.repeated_line_characters_frac, maximum=0.1),
        SINGLE["short_lines"],
    ),
    "c4": (SINGLE["placeholder"], SINGLE["braces"]),
}
"""Rules that are several measures. C4 also edits lines (see `c4_lines`)."""
C4_END_MARKS = (".", "!", "?", '"', "”")
C4_LEAST_WORDS, C4_LEAST_SENTENCES = 5, 3


def bounds_of(step: FilterStep) -> tuple[Bound, ...]:
    """The bounds of a rule, with those that the pipeline file sets."""
    if step.rule is None or step.rule == "language":
        return ()
    has_own = step.minimum is not None or step.maximum is not None
    if step.rule in SETS:
        if has_own:
            raise ConfigError(
                f"rule {step.rule!r} has several bounds of its own: use single rules to set minimum, maximum"
            )
        return SETS[step.rule]
    bound = SINGLE[step.rule]
    if step.minimum is not None:
        bound = replace(bound, minimum=step.minimum)
    if step.maximum is not None:
        bound = replace(bound, maximum=step.maximum)
    if bound.minimum > bound.maximum:
        raise ConfigError(
            f"rule {step.rule!r}: minimum {bound.minimum:g} is above maximum {bound.maximum:g}; set both"
        )  # fmt: skip
    return (bound,)


def c4_lines(text: str) -> tuple[str, bool]:
    """The lines that C4 keeps, and whether enough sentences are left."""
    kept = [
        line
        for line in text.split("\n")
        if line.rstrip().endswith(C4_END_MARKS)
        and len(line.split(maxsplit=C4_LEAST_WORDS - 1)) >= C4_LEAST_WORDS
        and "javascript" not in line.lower()
    ]
    edited = "\n".join(kept)
    num_sentences = sum(edited.count(mark) for mark in (". ", ".\n", "! ", "!\n", "? ", "?\n")) + bool(kept)
    return edited, num_sentences >= C4_LEAST_SENTENCES
