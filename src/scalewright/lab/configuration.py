"""The configuration files of an instance, as text.

Why it is configured like this:
- `proctrack/linuxproc` needs no control groups. A named cgroup plugin keeps slurmd from requiring a mounted tree.
- `config_overrides` lets a node claim more resources than the host has.
- The timers are short: a lost node, a requeue or a preemption takes seconds here and minutes on a real cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.lab.spec import LabSpec
from scalewright.lab.state import FIRST_PORT, LabPaths, LabState

NODES_PER_SWITCH = 2
DEBUG_NODES = 2
GPU_TYPE = "a100"
ACCOUNT = "lab"
DATABASE, DATABASE_USER = "slurm_acct_db", "slurm"
QOS_LOW, QOS_HIGH = "low", "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One slurmd."""

    name: str
    address: str
    port: int
    switch: str


def cluster_nodes(paths: LabPaths, state: LabState) -> list[Node]:
    return [
        Node(
            name=f"{paths.id}-n{i + 1}",
            address=node_address(state, i),
            port=state.node_port(i),
            switch=f"leaf{i // NODES_PER_SWITCH + 1}",
        )
        for i in range(state.spec.num_nodes)
    ]


def node_address(state: LabState, index: int) -> str:
    """Address of a node: that of its link, else a loopback address that no other instance uses."""
    if state.network_index:
        return f"10.{state.network_index}.1.{index + 1}"
    return f"127.{state.first_port >> 8}.{state.first_port & 255}.{index + 1}"


def controller_address(state: LabState) -> str:
    return f"10.{state.network_index}.0.1" if state.network_index else "127.0.0.1"


def slurm_conf(paths: LabPaths, state: LabState, host: str) -> str:
    sections = [_daemons(paths, state, host), _limits(state), _scheduling(state)]
    if state.spec.accounting:
        sections.append(_accounting(paths, state))
    sections += [_node_lines(paths, state), _partitions(paths, state)]
    return "".join(sections)


def _daemons(paths: LabPaths, state: LabState, host: str) -> str:
    return f"""\
ClusterName={paths.id}
SlurmctldHost={host}({controller_address(state)})
SlurmctldPort={state.controller_port}
# jobs of instances side by side have other numbers, so that ports derived from them differ
FirstJobId={1 + 100 * (state.first_port - FIRST_PORT)}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits before it may start again
AuthInfo=socket={paths.munge_socket},cred_expire=10
MpiDefault=none
MailProg=/bin/true
StateSaveLocation={paths.directory}/state
SlurmdSpoolDir={paths.directory}/spool/%n
SlurmctldPidFile={paths.run}/slurmctld.pid
SlurmdPidFile={paths.run}/slurmd-%n.pid
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SwitchType=switch/none
TopologyPlugin=topology/tree
"""


def _limits(state: LabState) -> str:
    by_kernel = state.memory_control == "cgroup"
    over_memory = "" if by_kernel else "JobAcctGatherParams=OverMemoryKill\n"
    return f"""\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{"cgroup" if by_kernel else "none"}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
{over_memory}SlurmctldTimeout=30
SlurmdTimeout=10
MessageTimeout=5
TCPTimeout=5
InactiveLimit=0
OverTimeLimit=0
KillWait=5
UnkillableStepTimeout=20
MinJobAge=600
ReturnToService=2
JobRequeue=1
MaxArraySize=10001
MaxJobCount=20000
"""


def _scheduling(state: LabState) -> str:
    per_cpu_mib = int(state.spec.memory_per_node_bytes / state.spec.num_cpus_per_node) >> 20
    preemption = (
        "PreemptType=preempt/qos\nPreemptMode=REQUEUE\n"
        # the signal of the job's --signal option, if it has one, instead of SIGTERM
        "SlurmctldParameters=preempt_send_user_signal\n"
        if state.spec.accounting
        else ""
    )
    return f"""\
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_resolution=10,bf_continue,bf_max_job_test=1000,sched_interval=2,batch_sched_delay=0,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={per_cpu_mib}
{preemption}PriorityType=priority/multifactor
PriorityCalcPeriod=00:01:00
PriorityMaxAge=01:00:00
PriorityWeightAge=1000
PriorityWeightFairshare={1000 if state.spec.accounting else 0}
PriorityWeightJobSize=100
PriorityWeightPartition=1000
PriorityWeightQOS={10000 if state.spec.accounting else 0}
"""


def _accounting(paths: LabPaths, state: LabState) -> str:
    gpus = f"AccountingStorageTRES=gres/gpu,gres/gpu:{GPU_TYPE}\n" if state.spec.num_gpus_per_node else ""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={state.accounting_port}
# this connection does not read AuthInfo: the socket is named once more
AccountingStoragePass={paths.munge_socket}
AccountingStorageEnforce=associations,limits,qos
{gpus}AccountingStoreFlags=job_comment,job_env,job_script
"""


def _node_lines(paths: LabPaths, state: LabState) -> str:
    spec = state.spec
    cpus = f"CPUs={spec.num_cpus_per_node} Boards=1 SocketsPerBoard=1 CoresPerSocket={spec.num_cpus_per_node}"
    memory_mib = int(spec.memory_per_node_bytes) >> 20
    gpus = f" Gres=gpu:{GPU_TYPE}:{spec.num_gpus_per_node}" if spec.num_gpus_per_node else ""
    kind = f"{GPU_TYPE}," if spec.num_gpus_per_node else ""
    lines = [
        f"NodeName={node.name} NodeAddr={node.address} Port={node.port} {cpus} ThreadsPerCore=1"
        f" RealMemory={memory_mib} Features={kind}{node.switch}{gpus} State=UNKNOWN\n"
        for node in cluster_nodes(paths, state)
    ]
    return ("GresTypes=gpu\n" if spec.num_gpus_per_node else "") + "".join(lines)


def _partitions(paths: LabPaths, state: LabState) -> str:
    debug = ",".join(node.name for node in cluster_nodes(paths, state)[:DEBUG_NODES])
    return f"""\
PartitionName=batch Nodes=ALL Default=YES DefaultTime=00:10:00 MaxTime=1-00:00:00 PriorityJobFactor=1 State=UP
PartitionName=gpu Nodes=ALL DefaultTime=00:10:00 MaxTime=1-00:00:00 PriorityJobFactor=1 State=UP
PartitionName=debug Nodes={debug} DefaultTime=00:05:00 MaxTime=00:30:00 PriorityJobFactor=10 PriorityTier=2 State=UP
"""


def gres_conf(paths: LabPaths, state: LabState) -> str:
    """The devices of the fake GPUs. They must be device files, else CUDA_VISIBLE_DEVICES is empty in jobs."""
    num_gpus = state.spec.num_gpus_per_node
    files = f"{paths.devices}/nvidia" + (f"[0-{num_gpus - 1}]" if num_gpus > 1 else "0")
    nodes = cluster_nodes(paths, state) if num_gpus else []
    return "AutoDetect=off\n" + "".join(
        f"NodeName={node.name} Name=gpu Type={GPU_TYPE} File={files}\n" for node in nodes
    )


def cgroup_conf(state: LabState) -> str:
    if state.memory_control != "cgroup":
        return "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n"
    return (
        "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainDevices=no\n"
        "ConstrainRAMSpace=yes\nConstrainSwapSpace=no\nAllowedRAMSpace=100\nMinRAMSpace=1\n"
    )


def topology_conf(paths: LabPaths, state: LabState) -> str:
    """Two levels: a switch for every two nodes, and one above them."""
    leaves: dict[str, list[str]] = {}
    for node in cluster_nodes(paths, state):
        leaves.setdefault(node.switch, []).append(node.name)
    lines = [f"SwitchName={switch} Nodes={','.join(names)}\n" for switch, names in leaves.items()]
    return "".join(lines) + f"SwitchName=spine Switches={','.join(leaves)}\n"


def slurmdbd_conf(paths: LabPaths, state: LabState, host: str, password: str) -> str:
    return f"""\
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={state.accounting_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={paths.munge_socket}
PidFile={paths.run}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={state.database_port}
StorageUser={DATABASE_USER}
StoragePass={password}
StorageLoc={DATABASE}
"""


def hosts_file(paths: LabPaths, state: LabState, of_host: str) -> str:
    """The names of the host and of the nodes. Jobs see this file as /etc/hosts."""
    lines = [f"{node.address} {node.name}\n" for node in cluster_nodes(paths, state)]
    return of_host.rstrip("\n") + "\n" + "".join(lines)


def spec_summary(spec: LabSpec) -> str:
    nodes = "1 node" if spec.num_nodes == 1 else f"{spec.num_nodes} nodes"
    gpus = {0: "no GPUs", 1: "1 fake GPU each"}.get(spec.num_gpus_per_node, f"{spec.num_gpus_per_node} fake GPUs each")
    return f"{nodes}, {gpus}, {'with' if spec.accounting else 'without'} accounting"
