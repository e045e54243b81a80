"""Ends by what the run was given: files, access, options, versions, disks, devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.findings.ends.ending import ending_by, number, quoted, seen_end
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule

_PATH = re.compile(r"(?<!\w)'([^']{2,200})'|\"([^\"]{2,200})\"|(/[\w./@+-]{2,200})")
_OFFLINE = re.compile(r"couldn't connect|offline mode|max retries exceeded|unreachable", re.IGNORECASE)
_OPTION = re.compile(r"(--[\w.-]+)|'([\w.-]+)'|\"([\w.-]+)\"|`([\w.-]+)`")


def _first_group(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next((group for group in match.groups() if group), "") if match else ""


@finding_rule(
    id="disk-full",
    severity="error",
    role="ended",
    title="A file system was full, or a quota was reached",
    why="A checkpoint, a log or a cache could not be written. A checkpoint that was being written may be damaged.",
    advice="Free space or raise the quota (also the number of files), keep fewer checkpoints, and point caches "
    "(HF_HOME, TRITON_CACHE_DIR, TMPDIR) to scratch. Resume from the last whole checkpoint.",
    source="errno(3): ENOSPC, EDQUOT",
)
def disk_full(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "disk-full"):
        path = str(ending.first.values.get("path", "")) or _first_group(_PATH, ending.first.message)
        where = f" ({path})" if path else ""
        yield seen_end(
            ending,
            f"{ending.who} could not write{where}{ending.when}: {quoted(ending.first, most=120)}.",
            f"free space{f' at {path}' if path else ''} or raise the quota, then resume from the last whole checkpoint",
        )


@finding_rule(
    id="missing-file",
    severity="error",
    role="ended",
    title="A file, a module or a model was not there",
    why="A path is wrong, not mounted on the compute nodes or in the container, or must be downloaded and the nodes "
    "have no way to the internet.",
    advice="Check the path on a compute node and inside of the container (`srun ls PATH`). Download models and data "
    "on a login node first, and set HF_HUB_OFFLINE=1 in the job.",
    source="Infrastructure Foundations for Scalable LLM Training, section 2.4.9: compute nodes without internet",
)
def missing_file(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "missing-file"):
        name = str(ending.first.values.get("path", "")) or _first_group(_PATH, ending.first.message)
        yield seen_end(
            ending,
            f"{ending.who} did not find what it needs{ending.when}: {quoted(ending.first)}",
            "download it on a login node first, and set HF_HUB_OFFLINE=1: compute nodes often have no internet"
            if _OFFLINE.search(ending.first.message)
            else f"check that {name or 'it'} exists on the compute nodes and inside of the container",
            numbers={"path": name} if name else {},
        )


@finding_rule(
    id="unreadable-data",
    severity="error",
    role="ended",
    title="A file is damaged, or its disk gives errors",
    why="A copy or a download ended early, a file was still being written, or the storage behind it fails. Every "
    "attempt ends at the same sample.",
    advice="Compare size and checksum with the source and copy the file again. If several files of one file system "
    "fail, look for I/O errors in dmesg and tell the support of the site.",
    source="errno(3): EIO, ESTALE; messages of NumPy, Pillow, PyTorch, safetensors and Arrow",
)
def unreadable_data(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "unreadable-data"):
        name = str(ending.first.values.get("path", "")) or _first_group(_PATH, ending.first.message)
        yield seen_end(
            ending,
            f"{ending.who} could not read its data{ending.when}: {quoted(ending.first)}",
            f"check {name or 'the file'} (size, checksum), and copy it again from its source",
            numbers={"path": name} if name else {},
        )


@finding_rule(
    id="access-denied",
    severity="error",
    role="ended",
    title="Access to a file or a model was refused",
    why="Models with a licence to accept (gated) need a token of an account that accepted it. Files of others need "
    "permission.",
    advice="Accept the licence on the model's page, log in on the login node and download there; the job then reads "
    "the local copy. Never write a token into a job script.",
    source="Hugging Face Hub, gated models; Infrastructure Foundations for Scalable LLM Training, section 2.4.9",
)
def access_denied(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "access-denied"):
        text = ending.first.message.lower()
        is_hub = any(word in text for word in ("gated", "401", "403", "restricted", "huggingface", "unauthorized"))
        yield seen_end(
            ending,
            f"{ending.who} was refused access{ending.when}: {quoted(ending.first)}",
            "accept the model's licence with your account, and download it on the login node with that account's token"
            if is_hub
            else "check owner and mode of the path on the compute node",
        )


@finding_rule(
    id="wrong-configuration-key",
    severity="error",
    role="ended",
    title="An option or a key of the configuration is wrong",
    why="A program refused an option that it does not know: misspelled, renamed in another version, or of another "
    "program.",
    advice="Compare the key with the program's --help of the installed version. Refusals at the start cost a whole "
    "wait in the queue: run with --help or one step on a login node first.",
    source="a common cause of jobs that end within seconds",
)
def wrong_configuration_key(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "wrong-configuration-key"):
        key = str(ending.first.values.get("key", "")) or _first_group(_OPTION, ending.first.message)
        is_ours = "scalewright.errors.ConfigError" in ending.first.message
        yield seen_end(
            ending,
            f"{ending.who} refused its configuration: {quoted(ending.first)}",
            "do what its message says, in exit_info.json and in the log of the rank"
            if is_ours
            else f"correct {key or 'the option'}: look it up in the --help of the installed version",
            numbers={"key": key} if key else {},
        )


@finding_rule(
    id="wrong-checkpoint",
    severity="error",
    role="ended",
    title="A checkpoint does not fit the model or the layout",
    why="The checkpoint has other sizes, other names of parameters, or was split over another number of ranks than the "
    "run that loads it.",
    advice="Compare the model's configuration with the one stored beside the checkpoint. Convert sharded checkpoints "
    "to the new layout with the framework's own tool, or resume with the old layout.",
    source="PyTorch, Module.load_state_dict; DeepSpeed, universal checkpointing",
)
def wrong_checkpoint(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "wrong-checkpoint"):
        is_size = "size mismatch" in ending.first.message
        yield seen_end(
            ending,
            f"{ending.who} could not load its checkpoint: {quoted(ending.first)}",
            "load the checkpoint with the model size that it was saved with"
            if is_size
            else "compare the model's configuration and layout with those that the checkpoint was saved with",
        )


@finding_rule(
    id="version-mismatch",
    severity="error",
    role="ended",
    title="Versions of libraries, driver or binaries do not fit together",
    why="An extension was built for another torch, CUDA or compiler, the driver is older than the CUDA runtime needs, "
    "or ranks load different versions of NCCL.",
    advice="Use one environment or container on all nodes. Rebuild extensions in it. Compare `nvidia-smi` (driver) "
    "with torch.version.cuda.",
    source="NVIDIA, CUDA compatibility",
)
def version_mismatch(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "version-mismatch"):
        text = ending.first.message.lower()
        if "driver" in text or "forward compat" in text:
            advice = (
                "use a torch built for a CUDA that this driver supports, or a container with compatibility libraries"
            )
        elif "symbol" in text or "glibc" in text or "elf" in text:
            advice = "rebuild the extension in this environment: it was built against other libraries"
        elif "kernel image" in text or "device function" in text:
            advice = "install a build for this GPU's compute capability (TORCH_CUDA_ARCH_LIST)"
        else:
            advice = "give all ranks the same environment or container, and rebuild what was compiled for another"
        yield seen_end(ending, f"{ending.who} met versions that do not fit: {quoted(ending.first)}", advice)


@finding_rule(
    id="device-error",
    severity="error",
    role="ended",
    title="A device reported an error",
    why="The driver reports errors of a GPU as Xid. Some are errors of the program (13, 31, 43: illegal access), "
    "others of the hardware (48, 63, 64, 74, 79, 94, 95, 119: memory, NVLink, bus, firmware). A CUDA error in Python "
    "may be reported at a later call than the one that failed.",
    advice="Hardware: leave the node out (--exclude) and report it. Program: run once with CUDA_LAUNCH_BLOCKING=1 for "
    "the right line; a device-side assert is often an index that is out of range.",
    source="NVIDIA, Xid errors (driver documentation, XID catalogue)",
)
def device_error(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "device-error"):
        first = ending.first
        xid = number(first, "xid")
        meaning, action = str(first.values.get("meaning", "")), str(first.values.get("action", "report the node"))
        is_program = "assert" in first.message.lower() or first.values.get("origin") == "program"
        label = f"Xid {xid:.0f}{f' ({meaning})' if meaning else ''}" if xid is not None else quoted(first)
        hosts = ",".join(ending.hosts)
        yield seen_end(
            ending,
            f"{ending.who} had a device error{ending.when}: {label}.",
            "run once with CUDA_LAUNCH_BLOCKING=1: this error is of the program, often an index out of range"
            if is_program
            else "start nvidia-fabricmanager in the version of the driver: GPUs with NVSwitch wait for it"
            if "system not yet initialized" in first.message
            else f"requeue with --exclude={hosts or 'NODE'}; then {action}",
            numbers={"xid": xid} if xid is not None else {},
        )
