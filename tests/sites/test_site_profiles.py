"""Profiles say what their sources say: values copied from the documents, not from our own scripts."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError, DocumentError, UnknownNameError
from scalewright.launch.script.render import render
from scalewright.launch.script.request import ArrayTasks
from scalewright.launch.script.resolved_job import resolve_job
from scalewright.launch.script.steps import srun_flags
from scalewright.sites.loader import find_site, load_site, packaged_sites
from scalewright.sites.types import Site, sourced_keys
from script_cases import ACCOUNTS, SITES, request_for


def tasks(num_items: int) -> ArrayTasks:
    return ArrayTasks(manifest=Path("/m"), num_items=num_items, max_running=1)


CATALOG = Catalog((packaged_data(),))
UNCATALOGUED = {"generic", "adastra"}
# Header flags of whole-node jobs on two nodes, as the sources of each site write them.
HEADERS = {
    ("lumi", "srun"): "--ntasks-per-node=8 --cpus-per-task=7 --gpus-per-node=8",
    ("lumi", "torchrun"): "--ntasks-per-node=1 --cpus-per-task=56 --gpus-per-node=8 --mem=480G",
    ("leonardo", "torchrun"): "--ntasks-per-node=1 --cpus-per-task=32 --gres=gpu:4",
    ("leonardo", "srun"): "--ntasks-per-node=4 --cpus-per-task=8 --gres=gpu:4",
    ("marenostrum5", "torchrun"): "--ntasks-per-node=1 --cpus-per-task=80 --gres=gpu:4 --qos=acc_ehpc",
    ("marenostrum5", "srun"): "--ntasks-per-node=4 --cpus-per-task=20 --gres=gpu:4",
    ("meluxina", "srun"): "--ntasks-per-node=4 --gpus-per-task=1 --cpus-per-task=32 --partition=gpu --qos=default",
    ("karolina", "srun"): "--ntasks-per-node=8 --cpus-per-task=16 --gpus-per-node=8 --gpu-bind=single:1",
    ("discoverer", "srun"): "--qos=ehpc-reg-2026 --cpus-per-task=26",
    ("vega", "srun"): "--partition=gpu --gres=gpu:4",
    ("deucalion", "srun"): "--partition=normal-a100-40 --gpus=8 --cpus-per-task=32",
    ("jupiter", "torchrun"): "--ntasks-per-node=1 --cpus-per-task=288 --gres=gpu:4 --gpu-bind=none",
    ("perlmutter", "srun"): "--ntasks-per-node=4 --cpus-per-task=32 --gpus-per-node=4 --gpu-bind=none --constraint=gpu",
    ("frontier", "srun"): "--partition=batch --network=disable_rdzv_get",
    ("clariden", "srun"): "--partition=normal --ntasks-per-node=4 --gpus-per-task=1",
    ("adastra", "srun"): "--constraint=MI250 --exclusive --ntasks-per-node=8 --cpus-per-task=8 --gpus-per-node=8 "
    "--threads-per-core=1",
}
STEPS = {
    ("lumi", "srun"): "--cpu-bind=mask_cpu:0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,"
    "0x00000000000000fe,0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000",
    ("marenostrum5", "torchrun"): "--cpu-bind=none --gpu-bind=none",
    ("deucalion", "srun"): "--cpu-bind=none",
    ("jupiter", "torchrun"): "--mpi=none --threads-per-core=1 --cpus-per-task=288 --wait=60",
    ("frontier", "srun"): "--ntasks=16 --cpus-per-task=7 --gpus-per-task=1 --gpu-bind=closest",
    ("adastra", "srun"): "--threads-per-core=1 --gpu-bind=closest",
}
VARIABLES = {
    "lumi": {"NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3", "NCCL_NET_GDR_LEVEL": "PHB", "HSA_ENABLE_SDMA": "0",
             "ROCFFT_RTC_CACHE_PATH": "/dev/null"},
    "leonardo": {"NCCL_IB_TIMEOUT": "120", "OMP_NUM_THREADS": "16", "HF_DATASETS_OFFLINE": "1", "NCCL_PXN_DISABLE": "1",
                 "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "offline", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "marenostrum5": {"NCCL_SOCKET_IFNAME": "ib0,ib1,ib2,ib3", "NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_4,mlx5_5",
                     "NCCL_NET": "IB", "NCCL_NVLS_ENABLE": "0", "OMPI_MCA_pml": "ucx"},
    "jupiter": {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3", "NCCL_NET_GDR_LEVEL": "2",
                "NCCL_NET_GDR_READ": "1", "NCCL_SOCKET_FAMILY": "AF_INET", "GLOO_SOCKET_FAMILY": "AF_INET",
                "NCCL_IB_TIMEOUT": "18", "NCCL_IB_RETRY_CNT": "20", "NCCL_PROTO": "Simple",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "perlmutter": {"FI_MR_CACHE_MONITOR": "userfaultfd", "CUDA_VISIBLE_DEVICES": "3,2,1,0",
                   "MPICH_OFI_NIC_POLICY": "GPU", "HDF5_USE_FILE_LOCKING": "FALSE"},
    "frontier": {"NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3", "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_CROSS_NIC": "1",
                 "FI_MR_CACHE_MONITOR": "kdreg2", "FI_CXI_DISABLE_HOST_REGISTER": "1",
                 "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_DEFAULT_TX_SIZE": "2048", "FI_CXI_RDZV_PROTO": "alt_read",
                 "FI_CXI_RDZV_EAGER_SIZE": "0", "FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_GET_MIN": "0",
                 "FI_CXI_RX_MATCH_MODE": "hybrid", "HSA_FORCE_FINE_GRAIN_PCIE": "1"},
    "clariden": {"NCCL_NET": "AWS Libfabric", "MPICH_GPU_SUPPORT_ENABLED": "0", "CUDA_CACHE_DISABLE": "1"},
    "adastra": {"FI_MR_CACHE_MONITOR": "memhooks", "ROCFFT_RTC_CACHE_PATH": "/dev/null"},
}  # fmt: skip


def test_the_fourteen_sites_are_there() -> None:
    assert set(SITES) == {*ACCOUNTS, "vega", "generic"}
    assert {name for name, site in SITES.items() if site.system is None} == UNCATALOGUED


@pytest.mark.parametrize(("site", "launcher"), HEADERS, ids=" ".join)
def test_header_is_what_the_sources_write(site: str, launcher: str) -> None:
    text = render(request_for(SITES[site], launcher=launcher), SITES[site]).text
    header = {
        line.removeprefix("#SBATCH ").replace("'", "") for line in text.splitlines() if line.startswith("#SBATCH")
    }
    assert set(HEADERS[site, launcher].split()) <= header


@pytest.mark.parametrize(("site", "launcher"), STEPS, ids=" ".join)
def test_step_has_the_flags_and_masks_of_the_sources(site: str, launcher: str) -> None:
    flags = srun_flags(resolve_job(request_for(SITES[site], launcher=launcher), SITES[site]), 2)
    assert set(STEPS[site, launcher].split()) <= set(flags)
    assert "--kill-on-bad-exit=1" in flags


@pytest.mark.parametrize("site", VARIABLES)
def test_variables_are_those_of_the_sources(site: str) -> None:
    text = render(request_for(SITES[site]), SITES[site]).text
    exported = dict(re.findall(r"^ *export (\w+)='?([^'\n]*?)'?(?:  # .*)?$", text, re.MULTILINE))
    assert {name: exported.get(name) for name in VARIABLES[site]} == VARIABLES[site]


def test_a_variable_says_why_where_the_profile_does_and_nobody_set_it_otherwise() -> None:
    leonardo = SITES["leonardo"]
    why = next(setting.note for setting in leonardo.env if setting.name == "NCCL_PXN_DISABLE")
    assert f"export NCCL_PXN_DISABLE=1  # {why}\n" in render(request_for(leonardo), leonardo).text
    own = render(request_for(leonardo, variables={"NCCL_PXN_DISABLE": "0"}), leonardo).text
    assert "export NCCL_PXN_DISABLE=0\n" in own


@pytest.mark.parametrize("name", SITES)
def test_every_value_has_a_source_and_every_source_is_used(name: str) -> None:
    site = SITES[name]
    used = {source.text for _, source in sourced_keys(site)}
    assert used == {source.text for source in site.sources.values()}
    assert all(source.checked.year >= 2026 for source in site.sources.values())


@pytest.mark.parametrize("name", sorted(set(SITES) - UNCATALOGUED))
def test_profile_agrees_with_the_catalogue(name: str) -> None:
    site = SITES[name]
    assert site.system is not None
    assert site.gpus_per_node is not None
    partition = next(p for p in CATALOG.system(site.system).partitions if p.default)
    assert site.gpus_per_node.value == int(partition.accelerators_per_node.value)
    assert partition.fabric is not None
    fabric = CATALOG.fabric(partition.fabric)
    assert CATALOG.link(fabric.link).family == site.fabric
    for transport in site.transports:
        assert site.fabric in CATALOG.transport(transport.id).families
    assert CATALOG.accelerator(partition.accelerator).vendor.lower() == site.vendor


@pytest.mark.parametrize("name", ["discoverer", "deucalion", "meluxina"])
def test_low_confidence_is_in_the_script(name: str) -> None:
    script = render(request_for(SITES[name]), SITES[name])
    assert any(note.startswith("low confidence: ") for note in script.notes)
    assert "\n# low confidence: " in script.text


def test_masks_are_left_out_where_the_node_is_shared() -> None:
    site = SITES["lumi"]
    job = resolve_job(request_for(site, gpus_per_node=4, partition="small-g"), site)
    assert job.cpu_bind == ""
    assert any("masks are left out" in note for note in job.notes)
    assert "#SBATCH --mem=240G\n" in render(request_for(site, gpus_per_node=4, partition="small-g"), site).text
    assert resolve_job(request_for(site, partition="dev-g"), site).cpu_bind == "map_cpu:49,57,17,25,1,9,33,41"


def test_part_of_a_node_is_asked_for_without_a_warning_where_nodes_are_shared() -> None:
    for name, is_warned in (("marenostrum5", False), ("clariden", True)):
        script = render(request_for(SITES[name], gpus_per_node=1, num_nodes=1, launcher="srun"), SITES[name])
        assert any("whole node" in note for note in script.notes) is is_warned
    assert (
        "#SBATCH --cpus-per-task=20\n"
        in render(
            request_for(SITES["marenostrum5"], gpus_per_node=1, num_nodes=1, launcher="srun"), SITES["marenostrum5"]
        ).text
    )


def test_deucalion_has_a_login_shell_and_others_do_not() -> None:
    firsts = {name: render(request_for(site), site).text.splitlines()[0] for name, site in SITES.items()}
    assert {name for name, line in firsts.items() if line == "#!/bin/bash -l"} == {"deucalion"}


def test_ranks_meet_at_an_address_where_names_do_not_do() -> None:
    for name, site in SITES.items():
        assert ("getent ahostsv4" in render(request_for(site), site).text) == (name in ("jupiter", "frontier"))


def test_own_profile_comes_before_the_packaged_one(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    packaged = (packaged_sites() / "lumi.toml").read_text()
    (tmp_path / "sites" / "lumi.toml").write_text(packaged.replace('"LUMI (LUMI-G)"', '"mine"'))
    (tmp_path / "sites" / "broken.toml").write_text("not toml [")
    assert find_site("lumi", tmp_path).name == "mine"
    assert find_site("LUMI-G", tmp_path).name == "mine"
    assert find_site("mn5", tmp_path).id == "marenostrum5"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('launcher = "srun"', 'launcher = "mpirun"', "launcher"),
        ('source = "slurm" }', 'source = "nobody" }', "source 'nobody' is not in"),
        ("--ntasks-per-node={gpus}", "--ntasks-per-node={ranks}", "placeholder 'ranks'"),
        ('"--gpus-per-node={gpus}"', '"--gpus-per-node={gpus}; rm -rf x"', "is not a flag"),
        ('verified = "run"', 'verifed = "run"', "did you mean"),
        ('path = "/tmp"', 'path = "/tmp$(id)"', "path"),
        ('[layouts.torchrun]', '[layouts.other]', "layouts"),
    ],
)  # fmt: skip
def test_profile_with_a_mistake_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    packaged = (packaged_sites() / "generic.toml").read_text()
    assert old in packaged
    path = tmp_path / "generic.toml"
    path.write_text(packaged.replace(old, new))
    with pytest.raises(DocumentError, match=re.escape(message)) as caught:
        load_site(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("site", "changes", "message"),
    [
        ("lumi", {"directives": {"gpus-per-task": "1"}}, "--gpus-per-task must not be used on LUMI"),
        ("lumi", {"directives": {"gpu-bind": "single:1"}}, "--gpu-bind must not be used on LUMI"),
        ("marenostrum5", {"directives": {"mem": "10G"}}, "--mem must not be used on MareNostrum"),
        ("perlmutter", {"partition": "gpu"}, "nodes are selected by constraint"),
        ("lumi", {"walltime_s": 2 * 86400 + 60}, "over 2-00:00:00, the limit"),
        ("leonardo", {"walltime_s": 86460}, "QOS normal"),
        ("frontier", {"walltime_s": 7260}, "limit of Frontier for 1 to 91 nodes"),
        ("frontier", {"num_nodes": 100, "walltime_s": 6 * 3600 + 60}, "limit of Frontier for 92 to 183 nodes"),
        ("frontier", {"num_nodes": 9473}, "at most 9472 nodes"),
        ("frontier", {"partition": "extended", "num_nodes": 65}, "allows at most 64; use batch"),
        ("karolina", {"partition": "qgpu_big"}, "requires 17 or more"),
        ("marenostrum5", {"qos": "acc_debug", "num_nodes": 9}, "allows 640"),
        ("meluxina", {"partition": "cpu"}, "has no GPUs: choose gpu"),
        ("lumi", {"mig": "1g.10gb"}, "no MIG slices"),
        ("lumi", {"gpus_per_node": 9}, "a node of LUMI (LUMI-G) has 8 GPUs"),
        ("generic", {"gpus_per_node": 0}, "give --gpus-per-node"),
        ("lumi", {"transport": "rdma"}, "does not have it; choose ofi-plugin"),
        ("lumi", {"transport": "pigeon"}, "no transport is called 'pigeon'"),
        ("lumi", {"directives": {"nodes": "3"}}, "is set by the script itself"),
        ("lumi", {"walltime_s": 0}, "no time limit: give --time"),
        ("lumi", {"array": tasks(211)}, "allows 210 jobs per user"),
        ("deucalion", {"array": tasks(10000)}, "allows fewer than 10000"),
    ],
)
def test_request_that_the_site_does_not_run_is_refused(site: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        render(request_for(SITES[site], **changes), SITES[site])
    assert len(str(caught.value).splitlines()) == 1


def test_longer_bins_of_frontier_are_allowed() -> None:
    site = SITES["frontier"]
    changes_of_limit = {
        "06:00:00": {"num_nodes": 92},
        "12:00:00": {"num_nodes": 184},
        "1-00:00:00": {"partition": "extended"},
    }
    for limit, (changes, hours) in zip(
        changes_of_limit, zip(changes_of_limit.values(), (6, 12, 24), strict=True), strict=True
    ):
        text = render(request_for(site, walltime_s=hours * 3600, **changes), site).text
        assert f"#SBATCH --time={limit}\n" in text


def _accepts(site: Site, partition: str, **changes: int) -> bool:
    try:
        render(request_for(site, partition=partition, **changes), site)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("site", [site for site in SITES.values() if len(site.partitions) > 1], ids=lambda s: s.id)
@pytest.mark.parametrize("num_nodes", [1, 2, 8, 64])
@pytest.mark.parametrize("walltime_s", [1800, 36 * 3600])
def test_a_list_of_partitions_is_accepted_where_each_of_them_is(site: Site, num_nodes: int, walltime_s: int) -> None:
    for first, second in itertools.permutations([rules.name for rules in site.partitions], 2):
        alone = [_accepts(site, name, num_nodes=num_nodes, walltime_s=walltime_s) for name in (first, second)]
        both = f"{first},{second}"
        assert _accepts(site, both, num_nodes=num_nodes, walltime_s=walltime_s) == all(alone), both
        if all(alone):
            text = render(request_for(site, partition=both, num_nodes=num_nodes, walltime_s=walltime_s), site).text
            assert f"#SBATCH --partition={both}\n" in text


def test_a_list_of_partitions_names_the_one_that_is_misspelt() -> None:
    with pytest.raises(UnknownNameError, match="called 'smal-g': did you mean small-g"):
        render(request_for(SITES["lumi"], partition="standard-g,smal-g"), SITES["lumi"])
    with pytest.raises(ConfigError, match="a comma between several"):
        request_for(SITES["lumi"], partition="standard-g, small-g")


@pytest.mark.parametrize("site", [site for site in SITES.values() if site.multi_node_modules], ids=lambda s: s.id)
def test_a_job_on_several_nodes_names_each_module_that_it_lacks(site: Site) -> None:
    needed = site.multi_node_modules
    assert needed is not None
    names = [module.partition(" ")[0] for module in needed.value]
    for given in itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(len(names) + 1)):
        modules = tuple(f"{name}/1" for name in given)
        warnings = " ".join(render(request_for(site, num_nodes=2, modules=modules), site).warnings)
        assert [module in warnings for module in needed.value] == [name not in given for name in names]
        alone = " ".join(render(request_for(site, num_nodes=1, modules=modules), site).warnings)
        assert not any(module in alone for module in needed.value)
