"""How fast job scripts are linted on one core, beside what a shell or ShellCheck takes to read the same files.

    python benchmarks/lint_scripts.py [--scripts 1000]

A quarter of the scripts are those that we render for every site, the others have their headers and a body that is put
together from what people write; they have 10 to 300 lines. One process lints all of them with every rule. The others
read the first hundred, as they are used: ShellCheck takes several files at once, bash one. Rounds alternate and the
best counts, in CPU time: machines have other work.
Exit 1: 1,000 scripts take 10 s or more.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S_PER_SCRIPT = 0.010
GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "sites"
ROUNDS = 2
OURS = "scalewright lint"
FEW = 100
"""Files for the others, ShellCheck being slow."""
MORE = (
    "module load cuda/12.4",
    "export NCCL_DEBUG=INFO",
    "export MASTER_PORT=29500",
    'srun torchrun --nproc_per_node 4 --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" train.py --lr 1e-4',
    "for size in 1 2 4 8; do\n    srun --exact -n $size python bench.py --size $size\ndone",
    'if [[ -f checkpoint.pt ]]; then\n    RESUME="--resume checkpoint.pt"\nfi',
    'cat > config.json <<EOF\n{"batch": 8}\nEOF',
)


def write_scripts(folder: Path, count: int) -> list[str]:
    """Rendered scripts and shorter ones, each with another choice of lines that people add."""
    chance = random.Random(7)
    whole = [path.read_text(encoding="utf-8") for path in sorted(GOLDEN.glob("*.sbatch"))]
    names = []
    for number in range(count):
        rendered = whole[number % len(whole)]
        header = [line for line in rendered.splitlines() if line.startswith("#")][: chance.randint(6, 20)]
        added = chance.choices(MORE, k=chance.randint(3, 30))
        text = (rendered if number % 4 == 0 else "\n".join(header) + "\n") + "\n".join(added) + "\n"
        path = folder / f"job{number:05d}.sh"
        path.write_text(text, encoding="utf-8")
        names.append(str(path))
    return names


def cpu_s(command: list[str]) -> float:
    """CPU time of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def contestants(names: list[str], scratch: Path) -> dict[str, list[str]]:
    """Commands by name; the first reads all files, the others a few."""
    listed = scratch / "names.txt"
    listed.write_text("\n".join(names[:FEW]) + "\n", encoding="utf-8")
    commands = {OURS: [sys.executable, "-m", "scalewright", "lint", "--json", "--fail-on", "never", *names]}
    if shutil.which("shellcheck"):
        commands["shellcheck"] = ["shellcheck", "--format=json", *names[:FEW]]
    commands["bash -n"] = ["bash", "-c", 'while read -r name; do bash -n "$name"; done <"$0"', str(listed)]
    return commands


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", type=int, default=1000)
    count = parser.parse_args().scripts
    with tempfile.TemporaryDirectory(prefix="lint-") as folder:
        names = write_scripts(Path(folder), count)
        num_lines = sum(Path(name).read_text(encoding="utf-8").count("\n") for name in names)
        commands = contestants(names, Path(folder))
        best = {name: float("inf") for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                best[name] = min(best[name], cpu_s(command))
    print(f"{count} scripts, {num_lines:,} lines; CPU time, best of {ROUNDS}")
    each = {name: spent / (count if name == OURS else min(count, FEW)) for name, spent in best.items()}
    for name, spent in best.items():
        ratio = each[OURS] / each[name]
        print(f"{name:18s} {spent:7.2f} s   {1e3 * each[name]:7.2f} ms a script   ours / its: {ratio:.3f}")
    return int(each[OURS] >= LIMIT_S_PER_SCRIPT)


if __name__ == "__main__":
    sys.exit(main())
