"""The network path of collectives: TCP instead of RDMA, few channels, and tensor parallelism between nodes."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import setting_number, setting_spots
from scalewright.observe.findings.planned import planned_gain
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule

SOCKET = "NET/SOCKET"
FEW_CHANNELS = 2
"""NCCL uses 8 to 32 channels between GPUs of NVLink nodes, and 2 or more for each network card."""
FALLBACK_FRAC = 0.3
"""Weight of a fallback whose cost is not measured: users report steps several times slower."""


@finding_rule(
    id="tcp-fallback",
    severity="warning",
    role="slowed",
    title="Collectives between nodes go over TCP",
    why="The library fell back to sockets: it did not find the InfiniBand devices, the plug-in of the vendor's "
    "network was not loaded, or a container hides them. Sockets reach a small part of the fabric's bandwidth and use "
    "the CPU.",
    advice="Load the network plug-in (aws-ofi-nccl, or the site's module), bind /dev/infiniband into the container, "
    "check `ibv_devinfo` on a compute node, and unset NCCL_IB_DISABLE and NCCL_NET=Socket.",
    source="NVIDIA NCCL documentation, environment variables; LlamaFactory issue 6111; llm-foundry issue 336",
)
def tcp_fallback(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    between = [one for one in evidence.transports if one.between == "nodes"]
    sockets = [one for one in between if one.way.upper().startswith(SOCKET)]
    fallbacks = evidence.of_kind("network_fallback")
    if not sockets or (setting_number(evidence, "num_nodes") or 2) < 2:
        return
    whole = len(sockets) == len(between)
    over = ", ".join(sorted({name for one in sockets for name in one.interfaces})) or "sockets"
    why = f": {fallbacks[0].message}" if fallbacks else ""
    yield Seen(
        message=f"{'all' if whole else 'some'} channels between nodes use TCP ({over}){why}",
        spots=(*(one.spot for one in sockets[:2]), *(one.spot for one in fallbacks[:1])),
        next_step="load the site's network plug-in for NCCL and check ibv_devinfo on a compute node",
        certainty="certain" if fallbacks else "likely", score=FALLBACK_FRAC, numbers={"num_channels": len(sockets)},
    )  # fmt: skip


@finding_rule(
    id="no-gpu-direct",
    severity="info",
    role="slowed",
    title="Network cards do not reach GPU memory themselves",
    why="Without GPUDirect RDMA every message is copied through host memory.",
    advice="Load the nvidia-peermem module (or use DMA-BUF), and check NCCL_NET_GDR_LEVEL and the PCIe topology.",
    source="NVIDIA documentation, GPUDirect RDMA; NCCL_NET_GDR_LEVEL",
)
def no_gpu_direct(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    rdma = [one for one in evidence.transports if one.between == "nodes" and "SOCKET" not in one.way.upper()]
    copied = [one for one in rdma if one.is_direct is False]
    if copied and len(copied) == len([one for one in rdma if one.is_direct is not None]):
        yield Seen(
            message=f"{len(copied)} channels between nodes use {copied[0].way} without GPUDirect",
            spots=(copied[0].spot,), next_step="check that nvidia-peermem is loaded, and NCCL_NET_GDR_LEVEL",
            score=0.1, numbers={"num_channels": len(copied)},
        )  # fmt: skip


@finding_rule(
    id="few-channels",
    severity="warning",
    role="slowed",
    title="Fewer network cards or channels are used than the node has",
    why="Each network card carries its own channels. If only one of several is used, the others' bandwidth is lost.",
    advice="Unset NCCL_IB_HCA, NCCL_SOCKET_IFNAME and NCCL_MAX_NCHANNELS, or name all cards in them; use "
    "NCCL_CROSS_NIC=1 where rails are connected.",
    source="NVIDIA NCCL documentation, NCCL_IB_HCA and NCCL_MAX_NCHANNELS; nccl-tests issue 290",
)
def few_channels(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    between = [one for one in evidence.transports if one.between == "nodes" and "SOCKET" not in one.way.upper()]
    used = {name for one in between for name in one.interfaces}
    cards = setting_number(evidence, "nics_per_node")
    if between and used and cards and len(used) < cards:
        share = 1.0 - len(used) / cards
        yield Seen(
            message=f"{len(used)} of {cards:.0f} network cards of a node are used ({', '.join(sorted(used))})",
            spots=(*(one.spot for one in between[:2]), *setting_spots(evidence, "nics_per_node")),
            next_step="name all cards in NCCL_IB_HCA, or unset it", certainty="certain", score=FALLBACK_FRAC * share,
            numbers={"used": len(used), "cards": cards},
        )  # fmt: skip
    channels = max((one.num_channels for one in between), default=0)
    limits = [name for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS") if name in evidence.environment]
    if between and limits and 0 < channels < FEW_CHANNELS:
        yield Seen(
            message=f"{limits[0]}={evidence.environment[limits[0]]} leaves {channels} channel between nodes",
            spots=(between[0].spot,), next_step=f"unset {limits[0]}", score=0.1, numbers={"num_channels": channels},
        )  # fmt: skip


@finding_rule(
    id="tensor-parallel-across-nodes",
    severity="warning",
    role="slowed",
    title="Tensor parallelism spans nodes",
    why="Tensor parallelism exchanges activations several times in every layer. Inside a node that goes over NVLink or "
    "Infinity Fabric; between nodes it goes over the network, ten to twenty times slower.",
    advice="Keep tp at most the GPUs of a node. Use pipeline parallelism or sharding (ZeRO) for the rest.",
    source="Narayanan et al. 2021 (arXiv:2104.04473), takeaway 1",
)
def tensor_parallel_across_nodes(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    tp, per_node = setting_number(evidence, "tp"), setting_number(evidence, "gpus_per_node")
    ranks, nodes = setting_number(evidence, "num_ranks"), setting_number(evidence, "num_nodes")
    if per_node is None and ranks and nodes:
        per_node = ranks / nodes
    if not tp or not per_node or tp <= per_node or tp < 2:
        return
    inside = int(per_node)
    factor = int(tp // inside)
    dp = setting_number(evidence, "dp") or 1
    gain: Gain | None = planned_gain(evidence, f"tp={inside},dp={int(dp) * factor}")
    yield Seen(
        message=f"tp={tp:.0f} spans {tp / per_node:.0f} nodes of {per_node:.0f} devices",
        spots=setting_spots(evidence, "tp", "gpus_per_node", "num_nodes"),
        next_step=f"use tp={inside} with pp={factor} or dp={int(dp) * factor}", certainty="certain",
        score=0.3 if gain is None else max(gain.step_time_frac, 0.05), numbers={"tp": tp, "gpus_per_node": per_node},
        gain=gain,
    )  # fmt: skip
