"""Samples of devices as `nvidia-smi --query-gpu=... --format=csv` prints them, for machines without one."""

from __future__ import annotations

QUERY = (
    "timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], "
    "power.limit [W], temperature.gpu, clocks.current.sm [MHz], clocks.max.sm [MHz], "
    "clocks_event_reasons.sw_thermal_slowdown, clocks_event_reasons.hw_thermal_slowdown, "
    "clocks_event_reasons.hw_power_brake_slowdown"
)
MOST_MHZ, NUM_SAMPLES, NUM_DEVICES = 1980, 30, 2
COLUMNS = ("sw_thermal", "hw_thermal", "power_brake")


def slowed_device_samples(*, clock_frac: float, reason: str) -> str:
    """Two H100s of one node, the second with a lower clock and the reason for it active."""
    rows = [QUERY]
    for second in range(NUM_SAMPLES):
        for device in range(NUM_DEVICES):
            is_slow = device == 1
            clock = MOST_MHZ * clock_frac if is_slow else MOST_MHZ
            active = [("Active" if is_slow and reason == name else "Not Active") for name in COLUMNS]
            heat, power = (89 if "thermal" in reason else 61, 410.0) if is_slow else (58, 655.0)
            rows.append(
                f"2026/11/16 12:00:{second:02d}.000, {device}, NVIDIA H100 80GB HBM3, 98 %, 61440 MiB, 81559 MiB, "
                f"{power:.2f} W, 700.00 W, {heat}, {clock:.0f} MHz, {MOST_MHZ} MHz, {', '.join(active)}"
            )
    return "\n".join(rows) + "\n"
