"""Why points of a study differ: each against the fastest of its group, term by term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from scalewright import units
from scalewright.observe.breakdown.gaps import LEAST_GAP_FRAC, OTHER, TermGap, explained_frac, gap_words, term_gaps
from scalewright.records.study_report import FindingShown, GapShown, GapTerm, Number
from scalewright.study.kinds.base import Outcome
from scalewright.study.results import Results

TIME = "step_time_s"
Terms = Mapping[str, float]


def gaps_of(results: Results) -> tuple[GapShown, ...]:
    """Every point against the fastest that differs from it in the axis `gaps` only; empty if the study names none."""
    axis = results.study.file.gaps
    if not axis:
        return ()
    outcomes = results.measured or results.predicted
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for index, point in enumerate(results.study.points):
        if TIME in outcomes[index].numbers and not outcomes[index].problem:
            rest = tuple((name, value) for name, value in point.labels.items() if name != axis)
            groups.setdefault(rest, []).append(index)
    return tuple(gap for indices in groups.values() for gap in _of_group(results, axis, indices, outcomes))


def _of_group(
    results: Results, axis: str, indices: Sequence[int], outcomes: Sequence[Outcome]
) -> Iterator[GapShown]:  # fmt: skip
    ordered = sorted(indices, key=lambda index: outcomes[index].numbers[TIME].value)
    fastest = ordered[0]
    for index in ordered[1:]:
        times = (outcomes[fastest].numbers[TIME], outcomes[index].numbers[TIME])
        terms, origin = _terms(results, fastest, index, (times[0].value, times[1].value))
        base, slower = (results.study.points[one].labels.get(axis, "") for one in (fastest, index))
        where = ", ".join(f"{name} {value}" for name, value in results.study.points[index].labels.items()
                          if name != axis)  # fmt: skip
        gap = GapShown(
            point=results.study.points[index].id, fastest=results.study.points[fastest].id, label=slower,
            fastest_label=base, where=where, step_time_s=times[1].value, fastest_step_time_s=times[0].value,
            origin="measured" if results.measured else "predicted", terms_origin=origin,
            explained_frac=_explained(terms), sentence="",
            terms=tuple(GapTerm(name=one.name, fastest_s=one.first_s, own_s=one.second_s, gap_frac=one.gap_frac)
                        for one in terms),
        )  # fmt: skip
        yield replace(gap, sentence=_sentence(gap, terms, times))


def _explained(terms: Sequence[TermGap]) -> float | None:
    return explained_frac(terms) if terms else None


def _terms(results: Results, fastest: int, index: int, times_s: tuple[float, float]) -> tuple[list[TermGap], str]:
    """Terms that the runs themselves measured; where one has none, those that the stacks of both predict."""
    for outcomes, origin in ((results.measured, "measured"), (results.predicted, "predicted")):
        if not outcomes:
            continue
        pair = [_seconds(outcomes[one]) for one in (fastest, index)]
        if all(pair) and _alike(pair):
            terms = term_gaps(pair[0], pair[1], times_s)
            # Predicted terms need not add up to what was measured: the rest of each step names nothing.
            return (terms if origin == "measured" else [one for one in terms if one.name != OTHER]), origin
    return [], ""


def _alike(pair: Sequence[Terms]) -> bool:
    """Whether both sides name the same sort of terms: a split of a log is coarser than one of a trace."""
    return ("compute" in pair[0]) == ("compute" in pair[1])


def _seconds(outcome: Outcome) -> Terms:
    time = outcome.numbers.get(TIME)
    return {} if time is None else {name: share * time.value for name, share in outcome.parts.items()}


def _sentence(gap: GapShown, terms: Sequence[TermGap], times: tuple[Number, Number]) -> str:
    own, base = (units.format(one, units.SECONDS) for one in (gap.step_time_s, gap.fastest_step_time_s))
    frac = gap.step_time_s / gap.fastest_step_time_s - 1.0
    where = f" ({gap.where})" if gap.where else ""
    if frac < LEAST_GAP_FRAC:
        return f"{gap.label}{where}: {own} a step, as fast as {gap.fastest_label} ({base}) within {LEAST_GAP_FRAC:.0%}"
    more = f"{frac:.0%} more than" if frac < 1.0 else f"{1.0 + frac:.1f} times"
    lead = f"{gap.label}{where}: {own} a step, {more} {gap.fastest_label} ({base})"
    if not terms:
        return f"{lead}; nothing tells the terms of both"
    how = "" if gap.terms_origin == gap.origin else "by the predicted terms, "
    high, low = times[0].high, times[1].low
    doubt = ""
    if gap.origin == "measured" and high is not None and low is not None and low < high:
        doubt = "; single steps of both overlap"
    return f"{lead}: {how}{gap_words(terms)}{doubt}"


def gap_findings(gaps: Sequence[GapShown]) -> Iterator[FindingShown]:
    yield from (FindingShown(text=gap.sentence, evidence=(gap.point, gap.fastest)) for gap in gaps)
