"""Texts of Slurm's programs, from other clusters than the test's own, read into a profile and held against one."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from scalewright.catalog.facts import link_sources
from scalewright.errors import EnvironmentFailedError
from scalewright.launch.slurm.sbatch import parse_job_id
from scalewright.records.loader import parse_toml, validate
from scalewright.sites.cluster import (
    Cluster,
    LiveQos,
    fabric_here,
    parse_config,
    parse_partitions,
    parse_qos,
    parse_sinfo,
)
from scalewright.sites.detected_profile import detected, differences, to_toml
from scalewright.sites.types import Site
from script_cases import SITES

SINFO = """\
standard-g|2900|128|491520|gpu:mi250:8(S:0-3)|AMD_EPYC_7A53,x1000
small-g|50|128|491520|gpu:mi250:8(S:0-3)|(null)
small|200|256|229376|(null)|AMD_EPYC_7763
mixed|4|64+|515000|gpu:a100:2(S:0),gpu:a100_3g.20gb:2|a100,ib
junk
"""
PARTITIONS = (
    "PartitionName=standard-g AllowGroups=ALL AllowQos=ALL Default=NO DefaultTime=NONE MaxNodes=1024 "
    "MaxTime=2-00:00:00 OverSubscribe=EXCLUSIVE State=UP TotalNodes=2900\n"
    "PartitionName=small-g Default=NO DefaultTime=00:30:00 MaxNodes=4 MaxTime=3-00:00:00 OverSubscribe=NO State=UP\n"
    "PartitionName=small Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED OverSubscribe=NO State=UP\n"
    "PartitionName=old Default=NO MaxNodes=1 MaxTime=01:00:00 State=DOWN\n"
)


def cluster(**changes: object) -> Cluster:
    parts = {
        "name": "lumi", "version": "24.05.8", "max_array_size": 1001,
        "partitions": parse_partitions(PARTITIONS, parse_sinfo(SINFO)),
        "qos": (LiveQos(name="normal", max_time_s=None, max_jobs=None),), "accounts": ("project_1", "project_2"),
        "fabric": "slingshot",
    }  # fmt: skip
    return Cluster(**(parts | changes))  # type: ignore[arg-type]


def made(cluster_here: Cluster) -> Site:
    text = to_toml(detected(cluster_here, "mine", today=date(2026, 11, 15)))
    return validate(link_sources(parse_toml(text, where="it"))[0], Site, where="it")


def test_texts_are_read() -> None:
    kinds = parse_sinfo(SINFO)
    assert [(k.partition, k.num_nodes, k.cpus, k.gpu_type, k.gpus) for k in kinds] == [
        ("standard-g", 2900, 128, "mi250", 8),
        ("small-g", 50, 128, "mi250", 8),
        ("small", 200, 256, "", 0),
        ("mixed", 4, 64, "a100", 4),
    ]
    partitions = parse_partitions(PARTITIONS, kinds)
    assert [(p.name, p.is_default, p.max_time_s, p.max_nodes, p.whole_node, p.gpus) for p in partitions] == [
        ("standard-g", False, 172800, 1024, True, 8),
        ("small-g", False, 259200, 4, False, 8),
        ("small", True, None, None, False, 0),
    ]
    assert partitions[1].default_time_s == 1800
    assert parse_config("ClusterName             = lumi\nMaxArraySize = 1001\nSlurmctldHost[0] = a\n") == {
        "ClusterName": "lumi", "MaxArraySize": "1001", "SlurmctldHost[0]": "a"
    }  # fmt: skip
    assert parse_qos("normal||\ndebug|00:30:00|2\nodd\n") == (
        LiveQos(name="normal", max_time_s=None, max_jobs=None),
        LiveQos(name="debug", max_time_s=1800, max_jobs=2),
    )


def test_profile_is_made_of_the_partition_with_most_gpu_nodes() -> None:
    site = made(cluster())
    assert site.select.partition == "standard-g"
    assert site.gpus_per_node is not None
    assert site.cpus_per_gpu is not None
    assert (site.gpus_per_node.value, site.cpus_per_gpu.value, site.vendor) == (8, 16, "amd")
    assert [t.id for t in site.transports] == ["ofi-plugin", "tcp-slingshot"]
    assert not site.account.required
    assert "project_2" in site.account.form
    assert {source.confidence for _, source in site.low_confidence()} == {"low"}
    assert site.runtimes[0].flags == ("--rocm",)


def test_cluster_without_gpus_is_an_environment_that_failed() -> None:
    bare = parse_partitions(PARTITIONS, parse_sinfo("small|200|256|229376|(null)|x\n"))
    with pytest.raises(EnvironmentFailedError, match="no partition with GPUs"):
        made(cluster(partitions=bare))


def test_hostile_names_come_out_as_text_or_are_refused() -> None:
    site = made(cluster(accounts=('a"b', "c\\d", "é"), version='24"\\'))
    assert 'a"b, c\\d, é' in site.account.form
    assert site.slurm is not None
    assert site.slurm.value == '24"\\'


def test_differences_are_named_and_agreement_is_silent() -> None:
    assert differences(made(cluster()), cluster()) == []
    message_of_rule = {finding.rule: finding.message for finding in differences(SITES["lumi"], cluster())}
    assert set(message_of_rule) == {"site.partitions.dev-g", "site.partitions.bench"}
    faster = PARTITIONS.replace("MaxTime=2-00", "MaxTime=1-00").replace("MaxNodes=1024", "MaxNodes=512")
    changed = cluster(
        partitions=parse_partitions(faster, parse_sinfo(SINFO.replace("mi250:8", "mi250:4"))), name="vega"
    )
    rules = {finding.rule for finding in differences(SITES["lumi"], changed)}
    assert {"site.cluster", "site.gpus_per_node", "site.partitions.standard-g.max_time",
            "site.partitions.standard-g.max_nodes"} <= rules  # fmt: skip


def test_fabric_is_read_from_the_adapters_of_this_node(tmp_path: Path) -> None:
    assert fabric_here(tmp_path) == "unknown"
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert fabric_here(tmp_path) == "infiniband"
    (tmp_path / "cxi" / "cxi0").mkdir(parents=True)
    assert fabric_here(tmp_path) == "slingshot"


@pytest.mark.parametrize("text", ["123\n", "123;lumi\n", "welcome to LUMI\n123;lumi\n"])
def test_job_number_is_found_in_what_sbatch_prints(text: str) -> None:
    assert parse_job_id(text) == "123"
