"""ServingEngine: the limits of a serving engine, as its documentation states them."""

from __future__ import annotations

from scalewright.catalog.entry import Entry
from scalewright.catalog.facts import Count, Fraction


class ServingEngine(Entry):
    """What an engine's defaults allow: sequences at once, prompt tokens at once, memory for the cache."""

    max_sequences: Count
    """Sequences that run at once at most."""
    prefill_tokens: Count
    """Prompt tokens that one iteration reads at most."""
    memory_share: Fraction
    """Share of memory for the cache: of the whole device with what else is in it, or of what is free."""
    shares_free_memory: bool
    """The share is of the memory that weights and activations leave free; else of the whole device."""
    reserves_answers: bool
    """A request starts only when its longest answer has room; else requests are put aside when memory runs out, and
    their cache is computed again."""
