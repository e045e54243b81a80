"""The library's own log: lines in the forms that NCCL 2.5 to 2.28, RCCL and the libfabric plugin write.

Forms as in the public threads NVIDIA/nccl 385, 952, 1357, 1538, 1609 and 1814, NVIDIA/nccl-tests 188, ROCm/rccl 1026,
aws/aws-ofi-nccl 161 and 801; hosts, processes and addresses are made up.
"""

from __future__ import annotations

import pytest

from scalewright.run.preflight.library_log import goes_through_host, is_direct, networks_used, read_log

H100 = """\
g1:39636:39690 [7] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ibp25s0:10.20.0.1<0>
g1:39636:39690 [7] NCCL INFO Using network IBext_v8
NCCL version 2.21.5+cuda12.4
g1:39636:39690 [7] NCCL INFO NVLS multicast support is available on dev 7
g1:39636:39690 [7] NCCL INFO Channel 04/0 : 0[0] -> 7[7] via P2P/CUMEM
g1:39636:39690 [7] NCCL INFO Channel 05/0 : 0[0] -> 7[7] via P2P/CUMEM
g1:39636:39690 [7] NCCL INFO Channel 03/0 : 47[7] -> 39[7] [receive] via NET/IBext_v8/2/GDRDMA
g1:39636:39690 [7] NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
"""
OLD = """\
[1,0]<stdout>:h:10158:10560 [0] NCCL INFO Bootstrap : Using [0]lo:127.0.0.1<0>
[1,0]<stdout>:NCCL version 2.5.6+cuda10.2
h:1:2 [1] NCCL INFO Ring 00 : 13[42000] -> 12[41000] via P2P/IPC
h:1:2 [1] NCCL INFO Ring 00 : 1[23000] -> 8[1e000] [send] via NET/IB/1/GDRDMA
"""
SOCKETS = """\
c:926:1151 [7] NCCL INFO NET/IB : No device found.
c:926:1151 [7] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>
c:926:1151 [7] NCCL INFO Using network Socket
c:926:1151 [7] NCCL INFO Channel 00/0 : 15[7] -> 14[6] via P2P/IPC/read
c:926:1151 [7] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3
"""
RCCL = """\
RCCL version : 2.21.5-HEAD:9a0e6a1
g:12:64 [0] NCCL INFO NET/OFI Using aws-ofi-rccl 1.4.0
g:12:64 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
g:12:64 [0] NCCL INFO Using network AWS Libfabric
g:12:64 [0] NCCL INFO Channel 02/0 : 1[c6000] -> 4[c1000] [receive] via NET/AWS Libfabric/1/GDRDMA comm 0x95 nRanks 08
g:12:64 [0] NCCL INFO Channel 00/0 : 7[ce000] -> 5[c6000] via P2P/IPC comm 0xfb16e30 nRanks 08
"""
RCCL_FALLEN_BACK = """\
g:12:64 [0] NCCL INFO Channel 02/0 : 1[c6000] -> 4[c1000] [receive] via NET/Socket/1 comm 0x95cdeb0 nRanks 08
"""
HOST_MEMORY = "h:533:1765 [2] NCCL INFO Channel 07 : 2[6] -> 3[7] via SHM/direct/direct\n"
FAILED = """\
i:1:2 [0] net.cc:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9b failed: Invalid argument
i:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 2901000 commId 0x8e - Init START
"""


def test_h100_over_infiniband() -> None:
    log = read_log(H100, rank=7)
    assert (log.rank, log.library, log.version) == (7, "nccl", "2.21.5+cuda12.4")
    assert log.network == "IBext_v8"
    assert log.routes == ("P2P/CUMEM", "NET/IBext_v8/2/GDRDMA")
    assert networks_used(log) == ("rdma",)
    assert is_direct(log)
    assert log.has_multicast
    assert not goes_through_host(log)


def test_slingshot_with_the_plugin() -> None:
    log = read_log(RCCL, rank=0)
    assert (log.library, log.version, log.provider) == ("rccl", "2.21.5-HEAD:9a0e6a1", "cxi")
    assert log.routes == ("NET/AWS Libfabric/1/GDRDMA", "P2P/IPC")
    assert networks_used(log) == ("libfabric",)
    assert is_direct(log)


@pytest.mark.parametrize("text", [SOCKETS, RCCL_FALLEN_BACK])
def test_a_fall_back_to_sockets_shows(text: str) -> None:
    log = read_log(text, rank=0)
    assert networks_used(log) == ("sockets",)
    assert not is_direct(log)


def test_interfaces_of_sockets_and_ports() -> None:
    assert read_log(SOCKETS, rank=0).interfaces == ("eth0",)
    assert read_log(H100, rank=0).interfaces == ("mlx5_0", "mlx5_1")


def test_old_releases_say_ring() -> None:
    log = read_log(OLD, rank=0)
    assert log.version == "2.5.6+cuda10.2"
    assert log.routes == ("P2P/IPC", "NET/IB/1/GDRDMA")


def test_host_memory_inside_a_node() -> None:
    assert goes_through_host(read_log(HOST_MEMORY, rank=0))
    assert networks_used(read_log(HOST_MEMORY, rank=0)) == ()


def test_warnings_are_kept_and_failures_are_not_routes() -> None:
    log = read_log(FAILED, rank=0)
    assert log.routes == ()
    assert len(log.warnings) == 1
    assert "Invalid argument" in log.warnings[0]


@pytest.mark.parametrize("text", ["", "\x00\xff garbage\n", "NCCL INFO Channel\nvia NET/\n"])
def test_what_is_no_log_says_nothing(text: str) -> None:
    assert read_log(text, rank=0).routes == ()


@pytest.mark.parametrize(
    ("way", "family"),
    [
        ("NET/IB/0(8)/GDRDMA", "rdma"),
        ("NET/IB/3/GDRDMA/Shared", "rdma"),
        ("NET/OFI/0", "libfabric"),
        ("NET/FastNet_v9/0", "FastNet_v9"),
    ],
)
def test_forms_of_a_way(way: str, family: str) -> None:
    log = read_log(f"h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via {way}\n", rank=0)
    assert networks_used(log) in ((family,), (family.removesuffix("_v9"),))
