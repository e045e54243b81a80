"""Names of the metrics of a run, each with its unit. Writers and readers of events use these."""

from __future__ import annotations

# Per rank and step.
STEP_TIME = "step_time"
"""Wall time of one optimizer step."""
LOSS = "loss"
TOKENS_PER_S = "tokens_per_s"
"""Of the whole job."""
IMAGES_PER_S = "images_per_s"
"""Of the whole job."""
LEARNING_RATE = "learning_rate"
FLOP_PER_S = "flop_per_s"
"""Model FLOP/s of one device."""
MFU = "mfu"
"""Model FLOP/s of one device over its dense peak."""
RATES = frozenset({TOKENS_PER_S, IMAGES_PER_S, FLOP_PER_S, MFU})
"""Higher is faster: the slowest rank has the lowest value."""
COMPUTE_TIME = "compute_time"
COMMUNICATION_TIME = "communication_time"
"""Exposed communication: time in which the device only waited for bytes."""
DATA_WAIT = "data_wait"
IDLE_TIME = "idle_time"
"""The rest of the step: pipeline bubbles, the host, waiting for slower ranks."""
OWN_TIME = "own_time"
"""From the start of a step until a rank has its own gradients: it waits for no other rank in it."""
CORE_WAIT = "core_wait"
"""Time in which the thread that trains was ready and had no core."""
PEAK_MEMORY = "peak_memory"
GRAD_NORM = "grad_norm"
CHECKPOINT_BLOCK = "checkpoint_block"
"""Time that training waited for a checkpoint."""
PREFLIGHT = "preflight"

# Per rank and step of a stage that trains a reasoning model.
REWARD = "reward"
"""Mean over the answers of a step."""
STAGE_PARTS = {
    part: f"part_{part}"
    for part in ("data", "generation", "reward", "log_probs", "training", "weight_sync", "evaluation", "checkpoint",
                 "idle", "release", "restore")
}  # fmt: skip
"""Time of each part of a step; records/reasoning.py names them."""

# Per rank and epoch, at its last step.
EPOCH_TIME = "epoch_time"
"""Training and validation, with their start-up."""
TRAINING_TIME = "training_time"
"""The epoch without its validation."""
VALIDATION_LOSS = "validation_loss"
TOP_1 = "top_1"
"""Share of the held-out images whose class has the highest score."""
TOP_5 = "top_5"
"""Share of those whose class is among the five highest."""

# Per rank and run, before its first step.
LOADER_RATE = "loader_images_per_s"
"""Rate of a rank's loader alone."""
COPYING_TIME = "copying_time"
"""Time of copying the data set to RAM or a local disk, or of waiting for the process that copies."""

# Per node and sample. Counters only grow; a reader takes differences.
CPU_USE = "cpu_use"
HOST_MEMORY = "host_memory"
DISK_READ = "disk_read"
DISK_WRITTEN = "disk_written"
GPU_USE = "gpu_use"
GPU_MEMORY = "gpu_memory"
GPU_POWER = "gpu_power"
GPU_TEMPERATURE = "gpu_temperature"
GPU_SLOWED = "gpu_slowed"
"""1 if heat or a power brake reduced the device's clock at that moment, else 0."""
GPU_ENERGY = "gpu_energy"
CPU_ENERGY = "cpu_energy"
NODE_ENERGY = "node_energy"
NETWORK_SENT = "network_sent"
NETWORK_RECEIVED = "network_received"
SAMPLER_CPU_TIME = "sampler_cpu_time"
"""CPU time that sampling itself took so far on this node."""

UNITS: dict[str, str] = {
    STEP_TIME: "s",
    LOSS: "1",
    TOKENS_PER_S: "tokens/s",
    IMAGES_PER_S: "images/s",
    LEARNING_RATE: "1",
    EPOCH_TIME: "s",
    TRAINING_TIME: "s",
    VALIDATION_LOSS: "1",
    TOP_1: "1",
    TOP_5: "1",
    LOADER_RATE: "images/s",
    COPYING_TIME: "s",
    FLOP_PER_S: "FLOP/s",
    MFU: "1",
    COMPUTE_TIME: "s",
    COMMUNICATION_TIME: "s",
    DATA_WAIT: "s",
    IDLE_TIME: "s",
    OWN_TIME: "s",
    CORE_WAIT: "s",
    PEAK_MEMORY: "bytes",
    GRAD_NORM: "1",
    CHECKPOINT_BLOCK: "s",
    PREFLIGHT: "s",
    CPU_USE: "1",
    HOST_MEMORY: "bytes",
    DISK_READ: "bytes",
    DISK_WRITTEN: "bytes",
    GPU_USE: "1",
    GPU_MEMORY: "bytes",
    GPU_POWER: "W",
    GPU_TEMPERATURE: "degC",
    GPU_SLOWED: "1",
    GPU_ENERGY: "J",
    CPU_ENERGY: "J",
    NODE_ENERGY: "J",
    NETWORK_SENT: "bytes",
    NETWORK_RECEIVED: "bytes",
    SAMPLER_CPU_TIME: "s",
    REWARD: "1",
    **dict.fromkeys(STAGE_PARTS.values(), "s"),
}
SPLIT = (COMPUTE_TIME, COMMUNICATION_TIME, DATA_WAIT, IDLE_TIME)
"""The measured parts of a step's wall time."""
COUNTERS = (DISK_READ, DISK_WRITTEN, GPU_ENERGY, CPU_ENERGY, NODE_ENERGY, NETWORK_SENT, NETWORK_RECEIVED)

# Things that happen, with a text.
EVENT_NAN = "event_nan_loss"
EVENT_FROZEN = "event_frozen_loss"
EVENT_IMPOSSIBLE = "event_impossible_flop_per_s"
EVENT_STALL = "event_stall"
EVENT_STOP = "event_stop_requested"
EVENT_RESUME = "event_resumed"
EVENT_CHECKPOINT = "event_checkpoint"
EVENT_STEADY = "event_steady_state"
"""Verdict of the steady-state detector: from which step on times count, or why none do."""
EVENT_STEADY_END = "event_steady_end"
"""The last step that counts, if those after it do not."""
EVENT_TOKENS = "event_token_check"
"""Reported tokens, compared with tokens whose loss was computed."""
EVENT_KERNELS = "event_kernels"
"""Choices about kernels that the speed depends on."""
EVENT_NO_SENSOR = "event_no_sensor"
EVENT_PLACE = "event_place"
"""Position of a node in the network, as the scheduler reports it."""
EVENT_BUSY = "event_busy"
"""A node was busy before the run started."""
EVENT_BINDING = "event_binding"
"""Threads, cores and NUMA nodes of a rank, as `name=value` words."""
EVENT_DATA = "event_data"
"""Files of the data set, as `name=value` words."""
EVENT_SYNC = "event_weight_sync"
"""Weights that an engine did not get, and why; it goes on with those it has."""
EVENT_PART = "event_part"
"""A part of a benchmark starts. Its value is the share of the work that is done."""
EVENT_PREFIX = "event_"
