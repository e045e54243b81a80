"""Whatever is asked for and however small the cache, every sequence finds its own tokens in its pages and ends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.run.generate.pages import PagePool
from scalewright.run.generate.requests import Request
from scalewright.run.generate.scheduler import Scheduler, StepPlan
from scalewright.run.generate.sequences import Sequence

MAX_CONTEXT = 24


class WrittenPages:
    """A cache that holds token ids instead of keys."""

    def __init__(self, page_tokens: int) -> None:
        self._size = page_tokens
        self._cells: dict[tuple[int, int], int] = {}

    def _cell(self, pages: list[int], position: int) -> tuple[int, int]:
        return pages[position // self._size], position % self._size

    def run(self, plan: StepPlan) -> None:
        """Copies, then chunks, then decoding, as a device does."""
        for origin, target in plan.copies:
            for offset in range(self._size):
                if (origin, offset) in self._cells:
                    self._cells[target, offset] = self._cells[origin, offset]
        for chunk in plan.chunks:
            for position, token in enumerate(chunk.tokens, start=chunk.start):
                self._cells[self._cell(chunk.pages, position)] = token
        for sequence in plan.decode:
            assert sequence.span is not None
            pages, last = sequence.span.pages, sequence.length - 1
            self._cells[self._cell(pages, last)] = sequence.tokens[-1]
        for sequence in plan.decode:
            assert sequence.span is not None
            stored = [self._cells[self._cell(sequence.span.pages, p)] for p in range(sequence.length)]
            assert stored == sequence.tokens


def next_token(sequence: Sequence) -> int:
    return (sum(sequence.tokens) + 31 * sequence.index + sequence.length) % 1000


@settings(max_examples=120, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=6),
    page_tokens=st.integers(1, 9),
    num_spare_pages=st.integers(0, 12),
    max_running=st.integers(1, 6),
    prefill_chunk=st.integers(1, 30),
    every=st.integers(1, 4),
)
def test_every_sequence_ends_with_its_own_tokens(
    asked: list[tuple[int, int, int]], page_tokens: int, num_spare_pages: int, max_running: int, prefill_chunk: int,
    every: int,
) -> None:  # fmt: skip
    num_pages = -(-MAX_CONTEXT // page_tokens) + num_spare_pages
    pool, cache = PagePool(num_pages), WrittenPages(page_tokens)
    scheduler = Scheduler(
        pool, page_tokens=page_tokens, max_context=MAX_CONTEXT, max_running=max_running, prefill_chunk=prefill_chunk
    )
    requests = [
        Request(id=str(n), prompt=tuple(range(100 * n, 100 * n + length)), max_new_tokens=new, num_answers=answers)
        for n, (length, new, answers) in enumerate(asked)
    ]
    ended: dict[tuple[str, int], Sequence] = {}
    waiting, num_steps = list(requests), 0
    while waiting or scheduler.has_work:
        if waiting and num_steps % every == 0:
            scheduler.add(waiting.pop(0))
        plan = scheduler.plan()
        assert plan.num_prefill_tokens <= prefill_chunk
        assert len(plan.decode) <= max_running
        cache.run(plan)
        scheduler.launched(plan)
        for sequence in plan.decode:
            sequence.num_in_flight = 0
            sequence.tokens.append(next_token(sequence))
            if sequence.end(MAX_CONTEXT) is not None:
                scheduler.finish(sequence)
                ended[sequence.group.request.id, sequence.index] = sequence
        num_steps += 1
        assert num_steps < 2000
    assert len(ended) == sum(request.num_answers for request in requests)
    assert pool.num_free == num_pages
    for sequence in ended.values():
        request = sequence.group.request
        assert len(sequence.tokens) == min(len(request.prompt) + request.max_new_tokens, MAX_CONTEXT)
