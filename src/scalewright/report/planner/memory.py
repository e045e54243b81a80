"""The three figures of a device's memory in words, always with their names, and the verdict."""

from __future__ import annotations

from scalewright import units
from scalewright.planner.answer import Answer

VERDICTS = {"fits": "[green]fits[/]", "tight": "[bold yellow]tight[/]", "does not fit": "[bold red]does not fit[/]"}


def verdict(answer: Answer) -> str:
    """`fits`, `tight` or `does not fit`, in colour."""
    return VERDICTS[answer.verdict]


def short_verdict(answer: Answer) -> str:
    """The verdict as the answer to a column `fits`."""
    return {"fits": "[green]yes[/]", "tight": "[bold yellow]tight[/]"}.get(answer.verdict, "[bold red]no[/]")


def plain_memory_rows(answer: Answer, *, where: str = "") -> list[tuple[str, str, str]]:
    """Name, figure and note of each of the three kinds, smallest first; without colour."""
    device_bytes = answer.question.machine.memory_bytes
    allocated, reserved, shown, device = (
        units.format(size, units.BYTES)
        for size in (answer.memory_bytes, answer.reserved_bytes, answer.device_bytes, device_bytes)
    )
    return [
        ("memory allocated", allocated, f"model; {where}peak of the tensors"),
        ("memory reserved", reserved, "by the framework's allocator"),
        ("memory on the device", shown, f"{answer.shown_by}; of {device}: {answer.verdict}"),
    ]


def memory_rows(answer: Answer, *, where: str = "") -> list[tuple[str, str, str]]:
    """The same with the verdict in colour."""
    *first, (name, shown, note) = plain_memory_rows(answer, where=where)
    return [*first, (name, shown, note.removesuffix(answer.verdict) + verdict(answer))]
