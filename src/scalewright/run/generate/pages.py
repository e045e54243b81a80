"""Pages of the cache: which are free, and how many holders each of the others has."""

from __future__ import annotations

from dataclasses import dataclass, field


class PagePool:
    """Counts holders of pages. Sequences of one prompt hold its whole pages together."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def occupancy_frac(self) -> float:
        return 1.0 - len(self._free) / self.num_pages

    def take(self, count: int) -> list[int]:
        """Free pages; the caller has checked that there are enough."""
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: list[int]) -> None:
        for page in pages:
            self._holders[page] += 1

    def release(self, pages: list[int]) -> None:
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)


@dataclass(slots=True, kw_only=True)
class CachedTokens:
    """Tokens at the start of a sequence whose keys and values are in pages."""

    pages: list[int] = field(default_factory=list)
    num_cached: int = 0

    def num_missing(self, num_tokens: int, page_tokens: int) -> int:
        """Pages that this many tokens need beyond those it has."""
        return max(-(-num_tokens // page_tokens) - len(self.pages), 0)


def starting_span(
    prefix: CachedTokens, pool: PagePool, page_tokens: int
) -> tuple[CachedTokens, tuple[int, int] | None]:
    """A span that begins with all tokens of `prefix`: it shares the whole pages and gets a copy of the last one.

    Returns the pages (from, to) to copy as well, or None where the prefix ends with its last page.
    """
    num_whole = prefix.num_cached // page_tokens
    shared = prefix.pages[:num_whole]
    pool.share(shared)
    span = CachedTokens(pages=list(shared), num_cached=prefix.num_cached)
    if prefix.num_cached % page_tokens == 0:
        return span, None
    span.pages += pool.take(1)
    return span, (prefix.pages[num_whole], span.pages[-1])
