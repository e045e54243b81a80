"""The parts of a report that only vision runs have: epochs with their scores, and whether the loader is the limit."""

from __future__ import annotations

from rich.console import Console

from scalewright import units
from scalewright.observe.vision_summary import VisionSummary
from scalewright.report.console import plain_table, rate_words

MOST_EPOCHS = 12


def print_vision(console: Console, vision: VisionSummary) -> None:
    console.print(limit_sentence(vision))
    if vision.copying_s is not None:
        console.print(
            f"the data set was copied in {units.format(vision.copying_s, units.SECONDS)} before the first step"
        )
    known = [epoch for epoch in vision.epochs if epoch.epoch_s is not None or epoch.top_1_frac is not None]
    if not known:
        return
    numbers = ("epoch", "time", "training", "loss", "top-1", "top-5")
    left_out = f", the last {MOST_EPOCHS} of {len(known)}" if len(known) > MOST_EPOCHS else ""
    table = plain_table(*numbers, "", right=numbers)
    for epoch in known[-MOST_EPOCHS:]:
        table.add_row(
            str(epoch.epoch),
            *(
                "-" if value is None else units.format(value, units.SECONDS)
                for value in (epoch.epoch_s, epoch.training_s)
            ),
            "-" if epoch.validation_loss is None else f"{epoch.validation_loss:.3f}",
            *("-" if value is None else f"{value:.1%}" for value in (epoch.top_1_frac, epoch.top_5_frac)),
            "counts" if epoch.counts else "",
        )
    console.print()
    console.print(f"[bold]epochs, of the slowest rank; scores of the held-out images{left_out}[/]")
    console.print(table)


def limit_sentence(vision: VisionSummary) -> str:
    """Whether the loader or the device is the limit, in one sentence with the numbers."""
    if vision.data_wait_frac is None or vision.device_images_per_s is None:
        return "no step was timed, so it is not known whether the loader or the device is the limit"
    takes = f"the device takes {rate_words(vision.device_images_per_s, 'images/s')}"
    if vision.loader_images_per_s is None:
        if vision.limit == "device":
            return f"synthetic images: {takes}, without a loader"
        gives = "the loader delivers less"
    else:
        gives = f"the loader alone delivers {rate_words(vision.loader_images_per_s, '').strip()}"
    waits = f"{vision.data_wait_frac:.0%} of a step waits for images"
    return f"the limit is the {vision.limit}: {takes}, {gives}; {waits}"
