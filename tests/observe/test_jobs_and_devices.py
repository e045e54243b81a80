"""Output of Slurm's commands, nvidia-smi and rocm-smi, alone and in the middle of a log."""

# ruff: noqa: E501 - lines are as long as programs write them

from __future__ import annotations

import pytest

from scalewright.observe.evidence.facts import JobFact

from .machine_text import read_text

SACCT = """JobID|JobName|Partition|State|ExitCode|Elapsed|Timelimit|Submit|Start|End|NNodes|NCPUS|ReqMem|MaxRSS|AllocTRES|NodeList|TotalCPU
163485|train|gpu|CANCELLED by 380693|0:0|10-13:27:06|37-14:00:00|2024-01-01T00:00:00|2024-01-02T00:00:00|2024-01-12T13:27:06|1|12|31000Mn||billing=12,cpu=12,gres/gpu:a100=2,gres/gpu=2,mem=31000M,node=1|cpn-f11-31|1-00:00:00
163485.batch|batch||CANCELLED|0:15|10-13:27:06||2024-01-01T00:00:00|2024-01-02T00:00:00|2024-01-12T13:27:06|1|12||3145728K||cpn-f11-31|00:00:10
163486|t2|gpu|FAILED|1:0|00:10:00|01:00:00|Unknown|2024-01-02T00:00:00|2024-01-02T00:10:00|2|24|4Gc||||00:00:00
163486.0|t2||OUT_OF_MEMORY|0:125|00:10:00|||||2|24||1048576K||cpn-f13-[01-02]|
"""


def jobs(text: str) -> dict[str, JobFact]:
    return {job.job_id: job for job in read_text(text).jobs}


def test_sacct_with_separators() -> None:
    by_id = jobs(SACCT)
    job = by_id["163485"]
    assert (job.state, job.reason, job.num_gpus, job.nodes) == ("CANCELLED", "by user 380693", 2, ("cpn-f11-31",))
    assert job.elapsed_s == 10 * 86400 + 13 * 3600 + 27 * 60 + 6
    assert job.limit_s == 37 * 86400 + 14 * 3600
    assert job.requested_memory_bytes == 31000 * 2**20
    assert job.peak_memory_bytes == 3 * 2**30
    assert job.ended_at_s is not None
    assert job.started_at_s is not None
    assert job.ended_at_s - job.started_at_s == job.elapsed_s
    other = by_id["163486"]
    assert (other.state, other.exit_code, other.signal) == ("OUT_OF_MEMORY", 1, None)
    assert other.requested_memory_bytes == 24 * 4 * 2**30
    assert other.submitted_at_s is None


def test_sacct_with_columns_that_cut_words() -> None:
    text = """some line before
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
200                long        gpu       proj         64    TIMEOUT      0:0
200.batch         batch                  proj         32  CANCELLED     0:15
201                long        gpu       proj         64 OUT_OF_ME+    0:125
202                long        gpu       proj         64 CANCELLED+      0:0

 iteration 5/10 | and a log goes on
"""
    assert {name: job.state for name, job in jobs(text).items()} == {
        "200": "TIMEOUT", "201": "OUT_OF_MEMORY", "202": "CANCELLED",
    }  # fmt: skip


def test_squeue_scontrol_and_seff() -> None:
    text = """             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
               301       gpu    train     alice PD       0:00      4 (ReqNodeNotAvail, UnavailableNodes:n1)
               302       gpu    train     alice  R    1:02:03      2 n[1-2]
JobId=12345 JobName=train.sh
   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=01:00:00 TimeLimit=2-00:00:00 TimeMin=N/A
   NodeList=n[001-004]
   NumNodes=4 NumCPUs=128 NumTasks=16 CPUs/Task=8 ReqB:S:C:T=0:0:*:*
   TRES=cpu=128,mem=512G,node=4,billing=128,gres/gpu=16

Job ID: 777
Cluster: c1
State: TIMEOUT (exit code 0)
Nodes: 2
Cores per node: 32
CPU Utilized: 1-02:03:04
Job Wall-clock time: 00:53:26
Memory Utilized: 1.50 GB
Memory Efficiency: 0.75% of 200.00 GB
"""
    by_id = jobs(text)
    assert (by_id["301"].state, by_id["301"].reason) == ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1")
    assert (by_id["302"].nodes, by_id["302"].elapsed_s) == (("n1", "n2"), 3723.0)
    page = by_id["12345"]
    assert (page.state, page.reason, page.num_gpus, page.num_tasks) == ("NODE_FAIL", "NodeDown", 16, 16)
    assert (page.limit_s, page.requested_memory_bytes, len(page.nodes)) == (172800.0, 512 * 2.0**30, 4)
    seff = by_id["777"]
    assert (seff.state, seff.num_cpus, seff.elapsed_s) == ("TIMEOUT", 64, 3206.0)
    assert (seff.peak_memory_bytes, seff.requested_memory_bytes) == (1.5 * 2**30, 200 * 2.0**30)


def test_dmon_reads_the_columns_that_are_there() -> None:
    text = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk     fb   bar1   ccpm
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz     MB     MB     MB
    0    218     43      -     95      0      0      0      0      0   2619   1980  40960      2      0
    1      -     44      -      -      0      0      0      0      0   2619    345      4      2      0
"""
    one, other = read_text(text).device_samples
    assert (one.device, one.power_w, one.use_frac, one.clock_hz) == ("0", 218.0, 0.95, 1.98e9)
    assert (one.temperature_c, one.memory_bytes) == (43.0, 40960 * 2**20)
    assert (other.power_w, other.use_frac, other.clock_hz) == (None, None, 345e6)


def test_query_reads_units_times_and_reasons() -> None:
    text = """timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], clocks.current.sm [MHz], clocks.max.sm [MHz], clocks_event_reasons.active, clocks_event_reasons.hw_thermal_slowdown
2026/11/16 19:00:00.500, 3, NVIDIA H100 80GB HBM3, 97 %, 70000 MiB, 81559 MiB, 612.10 W, 1200 MHz, 1980 MHz, 0x0000000000000040, Active
2026/11/16 19:00:01.500, 3, NVIDIA H100 80GB HBM3, [N/A], 70000 MiB, 81559 MiB, 612.10 W, 1980 MHz, 1980 MHz, 0x0000000000000000, Not Active
"""
    evidence = read_text(text)
    one, other = evidence.device_samples
    assert (one.device, one.use_frac, one.power_w, one.slowed_by) == ("3", 0.97, 612.1, ("hw_thermal",))
    assert (one.clock_hz, one.clock_high_hz) == (1.2e9, 1.98e9)
    assert (other.use_frac, other.slowed_by) == (None, ())
    assert one.at_s is not None
    assert other.at_s == pytest.approx(one.at_s + 1.0)
    assert evidence.settings["accelerator"][0] == "NVIDIA H100 80GB HBM3"


def test_the_table_of_nvidia_smi() -> None:
    text = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   41C    P0            412W /  700W |   71234MiB /  81559MiB |     98%      Default |
"""
    (one,) = read_text(text).device_samples
    assert (one.device, one.power_w, one.power_limit_w, one.use_frac) == ("0", 412.0, 700.0, 0.98)
    assert one.memory_total_bytes == 81559 * 2**20


def test_topology_gives_links_and_cards() -> None:
    text = """\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-51\t0
GPU1\tNV18\t X \tSYS\t0-51\t0
NIC0\tPIX\tSYS\t X \t\t

NIC Legend:
  NIC0: mlx5_0
"""
    settings = read_text(text).settings
    assert settings["gpus_per_node"][0] == "2"
    assert settings["gpu_links"][0] == "NV18"


def test_xml_of_nvidia_smi() -> None:
    text = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Mon Nov 16 19:00:00 2026</timestamp><driver_version>550.54</driver_version>
  <gpu id="00000000:1B:00.0">
    <product_name>NVIDIA A100-SXM4-40GB</product_name><minor_number>2</minor_number>
    <fb_memory_usage><total>40960 MiB</total><used>30000 MiB</used></fb_memory_usage>
    <utilization><gpu_util>50 %</gpu_util></utilization>
    <clocks_throttle_reasons><clocks_throttle_reason_sw_thermal_slowdown>Active</clocks_throttle_reason_sw_thermal_slowdown></clocks_throttle_reasons>
    <gpu_power_readings><power_draw>301.50 W</power_draw><current_power_limit>400.00 W</current_power_limit></gpu_power_readings>
    <ecc_errors><volatile><dram_uncorrectable>2</dram_uncorrectable></volatile></ecc_errors>
  </gpu>
</nvidia_smi_log>
"""
    evidence = read_text(text)
    (one,) = evidence.device_samples
    assert (one.device, one.use_frac, one.power_w, one.slowed_by) == ("2", 0.5, 301.5, ("sw_thermal",))
    assert one.at_s == 1794855600.0
    (error,) = evidence.of_kind("device_error")
    assert error.values["num_errors"] == 2.0


def test_xml_with_entities_is_refused() -> None:
    text = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log><gpu id="&a;"/></nvidia_smi_log>'
    evidence = read_text(text)
    assert not evidence.device_samples
    assert "entities" in evidence.sources[0].problem


def test_rocm_smi_pages_and_table() -> None:
    text = """============================ ROCm System Management Interface ============================
GPU[0]\t\t: Temperature (Sensor junction) (C): 61.0
GPU[0]\t\t: Average Graphics Package Power (W): 550.0
GPU[0]\t\t: GPU use (%): 99
GPU[0]\t\t: VRAM Total Memory (B): 68702699520
GPU[0]\t\t: VRAM Total Used Memory (B): 60000000000
GPU[0]\t\t: sclk clock level: 1: (1700Mhz)
================================== End of ROCm SMI Log ===================================
Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)
0       1     0x74a1,   28851  45.0°C      141.0W    NPS1, SPX, 0        132Mhz  900Mhz   0%   auto  750.0W  83%    97%
"""
    page, row = read_text(text).device_samples
    assert (page.temperature_c, page.power_w, page.use_frac, page.clock_hz) == (61.0, 550.0, 0.99, 1.7e9)
    assert (page.memory_bytes, page.memory_total_bytes) == (6e10, 68702699520.0)
    assert (row.device, row.temperature_c, row.power_w, row.power_limit_w) == ("0", 45.0, 141.0, 750.0)
    assert (row.use_frac, row.clock_hz) == (0.97, 132e6)
