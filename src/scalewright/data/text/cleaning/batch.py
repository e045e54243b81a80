"""The filters of a pipeline over one batch of documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalewright.data.text.cleaning.callables import load_callable
from scalewright.data.text.cleaning.language import language_of
from scalewright.data.text.cleaning.normalise import normalised
from scalewright.data.text.cleaning.rules import bounds_of, c4_lines
from scalewright.data.text.cleaning.text_view import TextView
from scalewright.data.text.execution.tally import Tally
from scalewright.data.text.pipeline_file import FilterStep, PipelineFile
from scalewright.data.text.reading.aside import AsideFile
from scalewright.data.text.reading.documents import TextDocument

REBUILD_FRAC = 0.5
"""The arrays are made again once fewer documents than this are left of them."""
FEW_SENTENCES = "fewer than 3 sentences"
RAISED = "raised an error"


@dataclass(slots=True)
class CleanBatch:
    """Documents that are still kept, with their UTF-8."""

    documents: list[TextDocument]
    contents: list[bytes]
    view: TextView
    view_rows: list[int]
    """Of each kept document, its number in the view."""


class BatchCleaner:
    """Normalises and filters batches; counts what it drops, and keeps documents aside on which a callable failed."""

    def __init__(self, pipeline: PipelineFile, folder: Path, tally: Tally, aside: AsideFile) -> None:
        self.pipeline, self.folder, self.tally, self.aside = pipeline, folder, tally, aside

    def clean(self, documents: list[TextDocument]) -> CleanBatch:
        """What is left of the documents."""
        step = self.pipeline.normalise
        if step is not None:
            with self.tally.timed("normalise") as tally:
                tally.docs_in += len(documents)
                tally.docs_out += len(documents)
                tally.bytes_in += sum(len(one.text) for one in documents)
                documents = [TextDocument(normalised(one.text, step), one.url, one.origin) for one in documents]
                tally.bytes_out += sum(len(one.text) for one in documents)
        batch = _made(documents)
        for rule in self.pipeline.filter:
            name = f"filter {rule.name}"
            with self.tally.timed(name) as tally:
                tally.docs_in += len(batch.documents)
                tally.bytes_in += sum(map(len, batch.contents))
                batch = self._filtered(batch, rule, name)
                tally.docs_out += len(batch.documents)
                tally.bytes_out += sum(map(len, batch.contents))
        return batch

    def _filtered(self, batch: CleanBatch, rule: FilterStep, name: str) -> CleanBatch:
        if not batch.documents:
            return batch
        reasons: dict[int, tuple[str, str]] = {}
        if rule.rule == "language":
            for row, one in enumerate(batch.documents):
                code = language_of(one.text)
                if code not in rule.languages:
                    reasons[row] = code, f"language {code}"
        elif rule.callable:
            self._call(batch, rule, reasons)
        else:
            if rule.rule == "c4":
                batch = self._c4(batch, name)
            self._measure(batch, rule, reasons)
        return self._without(batch, reasons, name)

    def _measure(self, batch: CleanBatch, rule: FilterStep, reasons: dict[int, tuple[str, str]]) -> None:
        for bound in bounds_of(rule):
            broken, values = bound.broken(batch.view)
            if not broken.any():
                continue
            for row, at in enumerate(batch.view_rows):
                if broken[at] and row not in reasons:
                    reasons[row] = bound.name, bound.words(float(values[at]))

    def _call(self, batch: CleanBatch, rule: FilterStep, reasons: dict[int, tuple[str, str]]) -> None:
        function = load_callable(rule.callable, self.folder)
        for row, one in enumerate(batch.documents):
            try:
                verdict = function(one.text, one.url)
                if not isinstance(verdict, bool | str | np.bool_):
                    raise TypeError(f"returned {type(verdict).__name__}, not True, False or a reason")
            except Exception as error:  # any error of the user's function concerns this document only
                why = f"{type(error).__name__}: {error}"
                reasons[row] = RAISED, why
                self.aside.add_document(
                    RAISED, error=why, callable_name=rule.callable, text=one.text, url=one.url, origin=one.origin
                )
                continue
            if isinstance(verdict, str):
                reasons[row] = verdict[:80], verdict[:200]
            elif not verdict:
                reasons[row] = "returned False", "returned False"

    def _c4(self, batch: CleanBatch, name: str) -> CleanBatch:
        """C4 edits lines before it judges the page."""
        edited, reasons = [], {}
        for row, one in enumerate(batch.documents):
            text, is_enough = c4_lines(one.text)
            edited.append(TextDocument(text if is_enough else one.text, one.url, one.origin))
            if not is_enough:
                reasons[row] = FEW_SENTENCES, FEW_SENTENCES
        return self._without(_made(edited), reasons, name)

    def _without(self, batch: CleanBatch, reasons: dict[int, tuple[str, str]], name: str) -> CleanBatch:
        for row, (reason, why) in reasons.items():
            one = batch.documents[row]
            self.tally.drop(name, reason, text=one.text, origin=one.origin, url=one.url, why=why)
        if not reasons:
            return batch
        kept = [row for row in range(len(batch.documents)) if row not in reasons]
        documents = [batch.documents[row] for row in kept]
        if len(kept) < REBUILD_FRAC * batch.view.num_documents:
            return _made(documents)
        contents, rows = [batch.contents[row] for row in kept], [batch.view_rows[row] for row in kept]
        return CleanBatch(documents, contents, batch.view, rows)


def _made(documents: list[TextDocument]) -> CleanBatch:
    contents = [one.text.encode("utf-8", errors="replace") for one in documents]
    return CleanBatch(documents, contents, TextView(contents), list(range(len(documents))))
