"""Every reader. A new one is one line here."""

from __future__ import annotations

from scalewright.observe.readers.dialects.deepspeed import DeepspeedReader
from scalewright.observe.readers.dialects.generic import GenericReader
from scalewright.observe.readers.dialects.huggingface import HuggingfaceReader
from scalewright.observe.readers.dialects.megatron import MegatronReader
from scalewright.observe.readers.dialects.mlperf import MlperfReader
from scalewright.observe.readers.dialects.pretraining import (
    ComposerReader,
    MaxtextReader,
    NemoReader,
    TorchtitanReader,
)
from scalewright.observe.readers.dialects.reinforcement import PrimeReader, RollReader, SlimeReader, VerlReader
from scalewright.observe.readers.dialects.reinforcement_blocks import ArealReader, NemoRlReader
from scalewright.observe.readers.dialects.serving import ServingReader
from scalewright.observe.readers.dialects.settings import SettingsReader
from scalewright.observe.readers.kineto import KinetoReader
from scalewright.observe.readers.machines import machine_line_readers, machine_whole_readers
from scalewright.observe.readers.reader import FolderReader, LineReader, Reader
from scalewright.observe.readers.run_folder import RunFolderReader
from scalewright.observe.readers.trainer_state import TrainerStateReader


def whole_readers() -> list[Reader]:
    """Readers of whole files, new ones for every call."""
    return [KinetoReader(), TrainerStateReader(), *machine_whole_readers()]


def folder_readers() -> list[FolderReader]:
    """Readers of folders that are one thing."""
    return [RunFolderReader()]


def line_readers() -> list[LineReader]:
    """Readers of lines, new ones for every log."""
    return [
        MegatronReader(), TorchtitanReader(), NemoReader(), MaxtextReader(), ComposerReader(), DeepspeedReader(),
        HuggingfaceReader(), VerlReader(), SlimeReader(), RollReader(), PrimeReader(), NemoRlReader(), ArealReader(),
        MlperfReader(), ServingReader(), SettingsReader(),
        *machine_line_readers(), GenericReader(),
    ]  # fmt: skip
