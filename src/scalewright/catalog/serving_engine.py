"""ServingEngine: the limits of a serving engine, as its documentation states them."""

from __future__ import annotations

from scalewright.catalog.entry import Entry
from scalewright.catalog.facts import Count, Fraction, Source, Strict


class GroupedKernels(Strict):
    """Releases whose decode attention reads a cached head once only for some numbers of query heads that share it."""

    until_release: str
    """The last one of them."""
    groups: tuple[int, ...]
    """Query heads of a cached head for which there is such a kernel; other groups read the cache once a query head."""
    source: Source


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
    release: str = ""
    """Release whose kernels run; empty: the newest."""
    grouped_kernels: tuple[GroupedKernels, ...] = ()
    """Older releases, oldest first; the others read every cached head once."""

    def num_cache_reads(self, group: int) -> int:
        """How often decode attention reads a cached head that `group` query heads share."""
        if not self.release:
            return 1
        mine = next((k for k in self.grouped_kernels if _order(self.release) <= _order(k.until_release)), None)
        return 1 if mine is None or group in mine.groups else group


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())
