"""ResolvedJob: a request checked against a site's rules, with every open choice made.

What the site cannot run is refused in one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.launch.script import transport as transports
from scalewright.launch.script.request import JobRequest
from scalewright.sites.account_pattern import account_matches
from scalewright.sites.job_limits import longest_s
from scalewright.sites.types import JobLayout, Launcher, Qos, Runtime, Site, SitePartition, SiteTransport
from scalewright.sites.walltime import format_walltime

DEFAULT_NOTICE_S = 120
SLICES_PER_GPU = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """A job request on a site. Everything that its script needs is decided."""

    request: JobRequest
    site: Site
    launcher: Launcher
    layout: JobLayout
    gpus: int
    cpus: int
    """CPUs per GPU; 0: unknown, so the script does not request CPUs."""
    partition: str
    """One, or several separated by commas: Slurm starts the job in the first that has room."""
    qos: str
    constraint: str
    notice_s: int
    transport: SiteTransport | None
    is_forced: bool
    """Whether the script forces the transport with environment variables."""
    runtime: Runtime | None
    cpu_bind: str
    notes: tuple[str, ...]

    @property
    def tasks_per_node(self) -> int:
        return self.gpus if self.launcher == "srun" else 1

    @property
    def cpus_per_task(self) -> int:
        return self.cpus if self.launcher == "srun" else self.cpus * self.gpus

    @property
    def is_full_node(self) -> bool:
        return self.site.gpus_per_node is not None and self.gpus == self.site.gpus_per_node.value

    @property
    def whole_node(self) -> bool:
        """Whether its partitions allocate whole nodes; true if the profile does not know them."""
        return all(partition.whole_node for partition in self.site.each_partition(self.partition))


def resolve_job(request: JobRequest, site: Site) -> ResolvedJob:
    notes: list[str] = []
    gpus = _gpus(request, site)
    launcher: Launcher = site.launcher if request.launcher == "auto" else request.launcher
    if request.ray or request.once_per_node:
        launcher = "torchrun"  # its layout has one task a node, with all CPUs and GPUs
    layout = site.layouts[launcher]
    account = _account(request, site, notes)
    partition, qos, constraint = _selection(request, site, account, notes)
    cpus = 0 if site.cpus_per_gpu is None else site.cpus_per_gpu.value
    _check_size(request, site, partition, qos, total_cpus=request.all_nodes * gpus * cpus)
    _check_time(request, site, partition, qos)
    _check_array(request, site, partition)
    transport, is_forced = transports.choose(site, request.transport)
    job = ResolvedJob(
        request=request, site=site, launcher=launcher, layout=layout, gpus=gpus, cpus=cpus,
        partition=partition, qos=qos, constraint=constraint, notice_s=_notice_s(request),
        transport=transport, is_forced=is_forced, runtime=_runtime(request, site),
        cpu_bind=_cpu_bind(request, site, launcher, partition, gpus), notes=tuple(notes),
    )  # fmt: skip
    return _with_advice(job)


def _gpus(request: JobRequest, site: Site) -> int:
    gpus_per_node = site.num_gpus_per_node
    requested = request.gpus_per_node or gpus_per_node
    if not requested:
        raise ConfigError(f"profile {site.id} does not give the GPUs of a node: give --gpus-per-node")
    if request.mig and site.vendor == "amd":
        raise ConfigError(f"--mig {request.mig}: {site.name} has AMD devices, which have no MIG slices: leave it out")
    largest = gpus_per_node * (SLICES_PER_GPU if request.mig else 1)
    if gpus_per_node and requested > largest:
        slices = f" with at most {SLICES_PER_GPU} slices each" if request.mig else ""
        raise ConfigError(
            f"--gpus-per-node {requested}: a node of {site.name} has {gpus_per_node} GPUs{slices}; "
            "request more --nodes instead"
        )
    return requested


def _account(request: JobRequest, site: Site, notes: list[str]) -> str:
    rule = site.account
    if not request.account:
        if rule.required:
            form = f", in the form {rule.form}" if rule.form else ""
            raise ConfigError(
                f"{site.name} runs no job without an account: give --account{form}; in a graph write account = in "
                "[defaults], in a study in [measure.job]"
            )
        return ""
    if rule.pattern and not account_matches(rule.pattern, request.account):
        notes.append(
            f"account {request.account} does not have the form of {site.name}'s accounts ({rule.form}): check it"
        )
    return request.account


def _selection(request: JobRequest, site: Site, account: str, notes: list[str]) -> tuple[str, str, str]:
    if request.partition:
        rule = next((f for f in site.forbidden if f.flag == "--partition"), None)
        if rule is not None:
            raise ConfigError(
                f"--partition {request.partition} must not be given on {site.name}, because {rule.why}: leave it out"
            )
    partition = request.partition or site.select.partition
    if request.partition and site.partitions:
        for name in request.partition.split(","):
            rules = site.partition(name)
            if rules is None:
                names = [p.name for p in site.partitions]
                hint = f"{site.id} has {', '.join(names)}"
                raise UnknownNameError(f"partition of {site.name}", name, names, hint=hint)
            if not rules.has_gpus:
                raise ConfigError(f"--partition {name} of {site.name} has no GPUs: choose {site.select.partition}")
    qos = request.qos or site.select.qos.replace("{account}", account)
    constraint = request.constraint or site.select.constraint
    if request.qos and site.qos and site.find_qos(request.qos) is None:
        notes.append(f"QOS {request.qos} is not in the profile of {site.id}: its limits are not checked")
    for name, value in (("partition", partition), ("qos", qos), ("constraint", constraint)):
        if name in site.select.mandatory and not value:
            raise ConfigError(f"{site.name} runs no job without a {name}: give --{name}")
    return partition, qos, constraint


def _check_size(request: JobRequest, site: Site, partition: str, qos: str, *, total_cpus: int) -> None:
    nodes = request.all_nodes
    for rule in (*site.each_partition(partition), site.find_qos(qos)):
        if rule is None:
            continue
        if rule.max_nodes is not None and nodes > rule.max_nodes:
            others = [p.name for p in site.partitions if p.has_gpus and (p.max_nodes or nodes) >= nodes]
            hint = f"use {' or '.join(others)}" if isinstance(rule, SitePartition) and others else "use fewer nodes"
            raise ConfigError(f"--nodes {nodes}: {rule.name} of {site.name} allows at most {rule.max_nodes}; {hint}")
        if nodes < rule.min_nodes:
            raise ConfigError(f"--nodes {nodes}: {rule.name} of {site.name} requires {rule.min_nodes} or more")
        if isinstance(rule, Qos) and rule.max_cpus is not None and total_cpus > rule.max_cpus:
            raise ConfigError(
                f"--nodes {nodes} means {total_cpus} CPUs: QOS {rule.name} of {site.name} allows {rule.max_cpus}"
            )
    for name in partition.split(","):
        bins = [b for b in site.size_bins if b.partition in ("", name)]
        if bins and not any(b.min_nodes <= nodes <= b.max_nodes for b in bins):
            largest = max(b.max_nodes for b in bins)
            raise ConfigError(f"--nodes {nodes}: {name or site.name} allows at most {largest} nodes in one job")


def _check_time(request: JobRequest, site: Site, partition: str, qos: str) -> None:
    if request.walltime_s < 1:
        raise ConfigError("the job has no time limit: give --time HH:MM:SS; a short one starts sooner")
    limit = longest_s(site, partition=partition, qos=qos, num_nodes=request.all_nodes)
    if limit is not None and request.walltime_s > limit[0]:
        raise ConfigError(
            f"--time {format_walltime(request.walltime_s)} is over {format_walltime(limit[0])}, the limit of "
            f"{site.name} for {limit[1]}: give a shorter --time (the job saves and is requeued), or another partition "
            "or QOS"
        )


def _check_array(request: JobRequest, site: Site, partition: str) -> None:
    """Refuse an array with more tasks than the site allows. Slurm counts every task as a job of the user."""
    if request.array is None:
        return
    tasks = request.array.num_items
    if site.max_array_size is not None and tasks >= site.max_array_size.value:
        raise ConfigError(
            f"--array has {tasks} items: {site.name} allows fewer than {site.max_array_size.value}; split it"
        )
    for rule in site.each_partition(partition):
        if rule.max_jobs is not None and tasks > rule.max_jobs:
            raise ConfigError(
                f"--array has {tasks} items: {rule.name} of {site.name} allows {rule.max_jobs} jobs per user; split it"
            )


def _notice_s(request: JobRequest) -> int:
    return request.notice_s or min(DEFAULT_NOTICE_S, max(request.walltime_s // 4, 10))


def _runtime(request: JobRequest, site: Site) -> Runtime | None:
    container = request.container
    if container is None:
        return None
    names = [r.kind for r in site.runtimes]
    runtime = next((r for r in site.runtimes if container.runtime in ("auto", r.kind)), None)
    if runtime is None:
        raise ConfigError(
            f"--runtime {container.runtime}: {site.name} has {', '.join(names) or 'no container runtime'}"
        )
    if runtime.kind == "apptainer" and not container.is_file:
        if site.internet is not None and not site.internet.value:
            raise ConfigError(
                f"--container {container.image}: compute nodes of {site.name} have no internet access: build an image "
                "file on a login node and give its full path"
            )
        if "://" not in container.image:
            raise ConfigError(
                f"--container {container.image!r} is neither a full path nor a reference like docker://..."
            )
    if container.sha256 and not container.is_file:
        raise ConfigError("a digest can be checked for an image file only: give the image's full path")
    return runtime


def _cpu_bind(request: JobRequest, site: Site, launcher: Launcher, partition: str, gpus: int) -> str:
    if request.mig:
        return ""
    for binding in site.bindings:
        if binding.launcher != launcher or (
            binding.partitions and not set(partition.split(",")) <= set(binding.partitions)
        ):
            continue
        if binding.gpus is None or binding.gpus == gpus:
            return binding.cpu_bind
    return ""


def _with_advice(job: ResolvedJob) -> ResolvedJob:
    """The job with notes about choices that work but may surprise the user."""
    site, request = job.site, job.request
    notes = list(job.notes)
    if job.whole_node and site.gpus_per_node is not None and not job.is_full_node and not request.mig:
        notes.append(
            f"{job.partition or site.name} allocates whole nodes: {site.gpus_per_node.value - job.gpus} of "
            f"{site.gpus_per_node.value} GPUs per node will be idle"
        )
    if any(b.launcher == job.launcher for b in site.bindings) and not job.cpu_bind:
        notes.append("CPU masks are left out: the profile has them for whole nodes only")
    if request.mig and (job.gpus > 1 or request.num_nodes > 1):
        notes.append("NCCL does not work across MIG slices: run independent tasks on them")
    notes += _lacking_modules(request, site)
    if job.layout.note:
        notes.append(job.layout.note)
    if job.layout.devices == "one" and job.launcher == "srun" and not request.mig:
        notes.append("each rank sees one device only, number 0: LOCAL_RANK is 0 in every rank")
    if site.arch is not None and site.arch.value != "x86_64":
        notes.append(f"{site.name} is {site.arch.value}: images and wheels must be built for it")
    if not request.requeue:
        notes += [
            f"{partition.name} preempts jobs: without requeue a preempted job is lost"
            for partition in site.each_partition(job.partition)
            if partition.preempts
        ]
    return job if len(notes) == len(job.notes) else replace(job, notes=tuple(notes))


def _lacking_modules(request: JobRequest, site: Site) -> list[str]:
    """What a job on several nodes of this site has to load and does not; an image brings its own libraries."""
    needed = site.multi_node_modules
    if needed is None or request.all_nodes < 2 or request.container is not None:
        return []
    given = [name.partition("/")[0].lower() for name in request.modules]
    lacking = [module for module in needed.value if module.partition(" ")[0].lower() not in given]
    if not lacking:
        return []
    plural = "s" if len(lacking) > 1 else ""
    return [
        f"a job on several nodes of {site.name} has to load the module{plural} {', '.join(lacking)} "
        f"({needed.source.text}): give each with --module, as module avail spells it"
    ]
