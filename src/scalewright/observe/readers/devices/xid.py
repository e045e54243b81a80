"""Xid numbers of NVIDIA's driver: what each says, who may have caused it, and what to do.

Source: NVIDIA, Xid Errors, catalogue for A100 and newer (docs.nvidia.com/deploy/xid-errors), and GPU Debug Guidelines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["program", "memory", "link", "bus", "firmware", "driver", "power", "other"]


@dataclass(frozen=True, slots=True)
class Xid:
    meaning: str
    origin: Origin
    action: str
    is_benign: bool = False
    """Corrected by the device: the program goes on."""


_PROGRAM = (
    "run once with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; if other programs fail on this GPU too, report it"
)
_RESET = "drain the node and reset the GPU"
_LATER = "reset the GPU after the job"
_REPORT = "drain the node and report it"
_RESTART = "start the job again; report the GPU if it happens again"

XIDS = {
    8: Xid("the GPU stopped processing", "driver", _RESTART),
    13: Xid("exception in a kernel: an illegal instruction or an address out of range", "program", _PROGRAM),
    31: Xid("page fault: a kernel used an address that is not mapped", "program", _PROGRAM),
    32: Xid("corrupted push buffer", "driver", _RESTART),
    38: Xid("firmware error of the driver", "firmware", _RESTART),
    39: Xid("error of a copy engine", "driver", _RESTART),
    40: Xid("error of a copy engine", "driver", _RESTART),
    41: Xid("error of a copy engine", "driver", _RESTART),
    43: Xid("a channel was reset after a fault of the program", "program", _PROGRAM),
    45: Xid("clean-up of a channel after another error", "program", "look for the Xid before it"),
    46: Xid("the GPU stopped processing", "driver", _RESET),
    48: Xid("uncorrectable double-bit error of GPU memory", "memory", _RESET),
    54: Xid("a power cable is not connected", "power", _REPORT),
    56: Xid("error of the display engine", "other", _REPORT),
    57: Xid("error of the display engine", "other", _REPORT),
    58: Xid("error of the display engine", "other", _REPORT),
    61: Xid("breakpoint or warning of an internal micro-controller", "firmware", _RESET),
    62: Xid("halt of an internal micro-controller", "firmware", _RESET),
    63: Xid("a row or page of memory was marked to be replaced", "memory", _LATER, is_benign=True),
    64: Xid("a row or page of memory could not be replaced", "memory", _REPORT),
    65: Xid("error of a video engine", "other", _RESTART),
    66: Xid("illegal access by the driver", "driver", _RESTART),
    67: Xid("illegal access by the driver", "driver", _RESTART),
    68: Xid("error of a video engine", "other", _RESTART),
    69: Xid("error of the graphics engine", "program", _PROGRAM),
    71: Xid("error of a copy engine", "driver", _RESTART),
    72: Xid("error of a copy engine", "driver", _RESTART),
    73: Xid("error of a video engine", "other", _RESTART),
    74: Xid("error of NVLink", "link", _REPORT),
    79: Xid("the GPU has fallen off the bus", "bus", _REPORT),
    80: Xid("corrupted data were sent to the GPU", "bus", _REPORT),
    81: Xid("error of the display", "other", _RESTART),
    92: Xid("a high rate of corrected memory errors", "memory", "report the GPU after the job", is_benign=True),
    93: Xid("the configuration memory is written too often", "firmware", "report it after the job", is_benign=True),
    94: Xid("a contained memory error: only programs that used it ended", "memory", _RESTART),
    95: Xid("an uncontained memory error: all programs on the GPU ended", "memory", _RESET),
    96: Xid("error of a video engine", "other", _RESTART),
    109: Xid("a context switch took too long", "program", _RESTART),
    110: Xid("a security fault", "firmware", _REPORT),
    119: Xid("the GPU's system processor did not answer (GSP timeout)", "firmware", _RESET),
    120: Xid("error of the GPU's system processor (GSP)", "firmware", _RESET),
    121: Xid("corrected errors of the chip-to-chip link", "link", _LATER, is_benign=True),
    122: Xid("a read of the flash memory of the board failed", "firmware", _RESET),
    123: Xid("a write of the flash memory of the board failed", "firmware", _RESET),
    136: Xid("training of a link failed", "link", _RESET),
    137: Xid("a fault over NVLink: a peer used a wrong address", "program", "look at the peers"),
    140: Xid("an uncorrectable error of memory, not yet recovered", "memory", _RESET),
    143: Xid("initialization of the GPU failed", "driver", _RESET),
    144: Xid("error of NVLink", "link", _REPORT),
    145: Xid("error of NVLink's receiver", "link", _REPORT),
    146: Xid("error of NVLink's transport layer", "link", _REPORT),
    147: Xid("error of NVLink", "link", _REPORT),
    148: Xid("error of NVLink", "link", _REPORT),
    149: Xid("error of NVLink's network layer", "link", _REPORT),
    150: Xid("error of NVLink", "link", _REPORT),
    154: Xid("the action that recovers the GPU changed", "driver", "do what the line says: reset, drain or reboot"),
    155: Xid("NVLink was disabled by software", "link", _RESET),
    156: Xid("a resource was retired", "memory", _LATER, is_benign=True),
    157: Xid("a resource could not be retired", "memory", _REPORT),
}  # fmt: skip
