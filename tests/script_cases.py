"""Requests whose scripts are stored in tests/golden/sites. Write them anew with: python tests/script_cases.py"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scalewright import __version__
from scalewright.launch.script.render import render
from scalewright.launch.script.request import ArrayTasks, Container, JobRequest
from scalewright.sites.loader import load_site, packaged_sites
from scalewright.sites.types import Site

GOLDEN = Path(__file__).resolve().parent / "golden" / "sites"
SITES = {path.stem: load_site(path) for path in sorted(packaged_sites().glob("*.toml"))}
ACCOUNTS = {
    "lumi": "project_465000123", "leonardo": "EUHPC_D01_001", "marenostrum5": "ehpc123", "meluxina": "p200123",
    "karolina": "EU-25-12", "discoverer": "ehpc-reg-2026", "deucalion": "f2026001g", "jupiter": "jureap59",
    "perlmutter": "m1234_g", "frontier": "abc123", "clariden": "g123", "adastra": "cad12345",
}  # fmt: skip
BASE = JobRequest(
    command=("python", "train.py", "--epochs", "3"), num_nodes=2, walltime_s=1800, run_dir=Path("/project/runs/first"),
    work_dir=Path("/project/code"),
)  # fmt: skip


def request_for(site: Site, **changes: object) -> JobRequest:
    gpus = 0 if site.gpus_per_node is not None else 4
    return replace(BASE, **{"account": ACCOUNTS.get(site.id, ""), "gpus_per_node": gpus, **changes})  # type: ignore[arg-type]


def cases() -> dict[str, tuple[Site, JobRequest]]:
    """By name of the stored file: each site as it comes, and one of each kind of extra."""
    requests = {name: (site, request_for(site)) for name, site in SITES.items()}
    image = Container(image="/project/images/torch.sif", sha256="0123456789abcdef" * 4)

    def add(name: str, site: str, **changes: object) -> None:
        requests[name] = (SITES[site], request_for(SITES[site], **changes))

    add("lumi-container", "lumi", container=image, launcher="torchrun", copied_paths=("/project/data", image.image))
    add("lumi-dev", "lumi", partition="dev-g")
    add("leonardo-spares", "leonardo", num_spares=1)
    add("lumi-array", "lumi", array=ArrayTasks(manifest=Path("/project/runs/first/manifest.txt"), num_items=200,
                                               max_running=20), command=("python", "train.py", "{item}"))  # fmt: skip
    add("perlmutter-shifter", "perlmutter", container=Container(image="nersc/pytorch:25.02.01"))
    add("perlmutter-tcp", "perlmutter", transport="tcp", constraint="gpu&hbm80g", switches="1@06:00:00")
    add("lumi-ray", "lumi", ray=True, venv="/project/env")
    add("generic-ray", "generic", ray=True, num_nodes=1)
    add("generic-pyxis", "generic", container=Container(image="/project/images/torch.sqsh", runtime="pyxis"))
    add("marenostrum5-ipoib", "marenostrum5", transport="ipoib", launcher="srun", reservation="maint")
    add("leonardo-mig", "leonardo", mig="1g.10gb", gpus_per_node=2, num_nodes=1, launcher="srun", requeue=False)
    return requests


def stored_text(site: Site, request: JobRequest) -> str:
    """A script as it is stored: without the version, which changes with every release."""
    return render(request, site).text.replace(f"scalewright {__version__}", "scalewright VERSION")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for stale in GOLDEN.glob("*.sbatch"):
        stale.unlink()
    for name, (site, request) in cases().items():
        (GOLDEN / f"{name}.sbatch").write_text(stored_text(site, request), encoding="utf-8")
