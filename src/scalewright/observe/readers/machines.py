"""Readers of what machines, libraries and schedulers say, beside the logs of training programs."""

from __future__ import annotations

from scalewright.observe.readers.communication.inspector import InspectorReader
from scalewright.observe.readers.communication.nccl_log import NcclLogReader
from scalewright.observe.readers.communication.nccl_tests import NcclTestsReader
from scalewright.observe.readers.communication.watchdog import WatchdogReader
from scalewright.observe.readers.devices.kernel_log import KernelLogReader
from scalewright.observe.readers.devices.rocm_smi import RocmSmiReader
from scalewright.observe.readers.devices.smi_tables import NvidiaSmiReader
from scalewright.observe.readers.devices.smi_xml import SmiXmlReader
from scalewright.observe.readers.flight.reader import FlightReader
from scalewright.observe.readers.reader import LineReader, Reader
from scalewright.observe.readers.scheduler.job_tables import JobTableReader
from scalewright.observe.readers.scheduler.launchers import LauncherReader
from scalewright.observe.readers.scheduler.other_schedulers import OtherSchedulerReader
from scalewright.observe.readers.scheduler.slurm_lines import SlurmLineReader
from scalewright.observe.readers.scheduler.torchrun import TorchrunReader
from scalewright.observe.readers.system_errors import CommandErrorReader, SystemErrorReader
from scalewright.observe.readers.tracebacks import TracebackReader


def machine_whole_readers() -> list[Reader]:
    return [FlightReader(), SmiXmlReader()]


def machine_line_readers() -> list[LineReader]:
    return [
        TracebackReader(), TorchrunReader(), SlurmLineReader(), OtherSchedulerReader(), LauncherReader(),
        WatchdogReader(), NcclLogReader(), NcclTestsReader(),
        InspectorReader(), KernelLogReader(), SystemErrorReader(), JobTableReader(), NvidiaSmiReader(), RocmSmiReader(),
        CommandErrorReader(),
    ]  # fmt: skip
