"""Options of `predict` and `plan`, valid and mutated: what people write in layouts, requests, RL steps and budgets."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from scalewright.planner.generation import CHANGED as GENERATE_CHANGED
from scalewright.planner.generation import KEYS as GENERATE_KEYS
from scalewright.planner.request import BUDGETS
from scalewright.workload.layout import KEYS as LAYOUT_KEYS
from scalewright.workload.rl import CHANGED_KEYS as RL_CHANGED
from scalewright.workload.rl import NEEDED, OPTIONAL

Chance = random.Random
DEFAULT = ["predict", "--model=gpt2", "--system=generic-h100", "--layout=dp=8,gbs=64"]
VALUES = (
    "0", "1", "2", "3", "4", "8", "16", "64", "512", "1000", "4096", "-1", "0.5", "1.5", "1e3", "1e30", "1e999", "-0", "nan", "inf",
    "-inf", "", " ", "x", "none", "full", "bf16", "fp8", "int4", "vllm", "auto", "True", "0x10", "1_000", "\u0664", "\u202e", "\x1b[31m",
    "\0", "9" * 400, "9" * 5000, "a" * 3000, "2147483648", "9223372036854775808", "1000000000000", "../../etc/passwd", "%s", "{}",
    "lognormal:mean=512,cv=0.8,max=4096", "lognormal:mean=0,cv=1", "lognormal:mean=1e9,cv=1e9", "lognormal:", "uniform:1",
    "pareto:mean=100,alpha=1.01", "pareto:mean=512,alpha=2.5,max=4096", "lognormal:mean=512,cv=1e-12", "lognormal:mean=5,max=4", ":", ";", "=", "4k",
    "100B", "1 MUSD", "900 kEUR", "500 MWh", "30 d", "1e-300", "1e308 s", "12 GB", "100000", "0 USD", "-5 h", "5 parsecs", "10%",
)  # fmt: skip
USUAL: dict[str, tuple[str, ...]] = {
    "tp": ("1", "2", "4"), "pp": ("1", "2"), "vpp": ("1", "2"), "cp": ("1", "2"), "ep": ("1", "2"), "dp": ("1", "2", "8", "16"),
    "mbs": ("1", "2", "8"), "gbs": ("8", "64", "128"), "zero": ("0", "1", "2", "3"), "sp": ("0", "1"),
    "recompute": ("none", "full", "selective"), "prompts": ("8", "64"), "samples": ("1", "8", "16"),
    "prompt": ("1", "128", "512", "lognormal:mean=512,cv=0.8,max=4096"), "response": ("1", "64", "700"), "longest": ("64", "128", "1000", "5000"),
    "gpus": ("0", "8", "16"), "lag": ("0", "1", "2", "5"), "chunks": ("1", "4"), "tokens": ("1", "4096"), "budget": ("0", "200", "4096", "1000000"),
    "retention": ("1", "2", "8"), "staleness": ("0", "1", "3"), "ref": ("0", "1"), "old": ("0", "1"), "pack": ("0", "1"), "keep": ("0", "1"),
    "loop": ("0", "1"), "cv": ("0.1", "1", "1e-9", "30"), "stale": ("0", "0.5", "1", "0.001"), "sync": ("broadcast", "peers", "file"),
    "reward": ("0", "1.5", "1e8"), "memory": ("0.01", "0.5", "1"), "precision": ("bf16", "fp8", "fp32"), "answers": ("1", "8"),
    "rate": ("0.001", "4", "1000"), "running": ("1", "64"), "cache": ("fp8", "bf16"), "weights": ("int4", "fp8"),
    "engine": ("vllm", "sglang", "scalewright"), "gen_tp": ("1", "2"), "gen_pp": ("1", "2"), "gen_precision": ("fp8", "bf16"),
    "stack": ("eager", "megatron-core", "compiled"), "mode": ("lora", "full", "offload"), "seq": ("64", "512", "2048"), "nodes": ("1", "2"),
    "gpu-hours": ("1", "100000"), "energy": ("500 MWh", "1 kWh"), "money": ("1 MUSD", "900 kEUR"), "eur": ("900 kEUR", "5000"),
    "time": ("30 d", "1 h"), "billed": ("100", "1e9"), "layers": ("1", "2", "48"), "hidden": ("64", "1024"), "heads": ("4", "8"),
    "kv_heads": ("1", "4"), "head_dim": ("16", "64"), "ffn": ("256",), "vocab": ("100", "50304"), "gated": ("0", "1"),
}  # fmt: skip
"""Values that people write; most of them are accepted."""
PIECES = (
    ",",
    ",,",
    "=",
    ";",
    ":",
    " ",
    "\n",
    "\t",
    "-",
    "--",
    "0",
    "9",
    ".",
    "e",
    "\u00e9",
    "\U0001f600",
    "'",
    '"',
    "\\",
    "[",
    "]",
    "(",
)
SYSTEMS = ("generic-h100", "leonardo", "lumi", "laptop", "generic-v100", "jupiter", "deucalion")
MODELS = (
    "gpt2", "gpt2", "gpt2", "llama2-7b", "mixtral-8x7b", "deepseek-v3", "resnet-50", "bert-base", "t5-base",
    "layers=2,hidden=64,heads=4", "layers=24,hidden=1024,heads=16,vocab=50304,seq=2048",
)  # fmt: skip
SHAPE_KEYS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq", "gated")
WHAT_IF_KEYS = (*LAYOUT_KEYS, "precision", "stack", "mode", "seq", "nodes")
LAYOUT = {"tp": "1", "dp": "8", "mbs": "1", "gbs": "64"}
REQUEST = {"prompt": "128", "response": "64"}
STEP = {"prompts": "8", "samples": "8", "prompt": "128", "response": "64"}


def _written(chance: Chance, usual: dict[str, str], keys: tuple[str, ...], most: int = 3) -> str:
    """Parts of a grammar: the usual ones, some of them with other values, some more, and at times one too few."""
    parts = dict(usual)
    for _ in range(chance.randint(0, most)):
        key = chance.choice(keys)
        parts[key] = _value(key, chance)
    if parts and chance.random() < 0.05:
        del parts[chance.choice(list(parts))]
    names = list(parts)
    if chance.random() < 0.2:
        chance.shuffle(names)
    return ",".join(f"{name}={parts[name]}" for name in names)


def _value(key: str, chance: Chance) -> str:
    kind = chance.random()
    if kind < 0.75:
        return chance.choice(USUAL.get(key, VALUES))
    return str(chance.randint(0, 5000)) if kind < 0.85 else chance.choice(VALUES)


def _torn(text: str, chance: Chance) -> str:
    """The text with a piece put in, cut out, repeated or exchanged."""
    at = chance.randrange(len(text) + 1)
    match chance.randrange(5):
        case 0:
            return text[:at] + chance.choice(PIECES) + text[at:]
        case 1:
            return text[:at] + text[at + chance.randint(1, 5) :]
        case 2:
            return text[:at] + text[max(at - 12, 0) : at] * chance.randint(1, 4) + text[at:]
        case 3:
            return text[:at] + chance.choice(VALUES) + text[at:]
        case _:
            return text[at:] + text[:at]


def _predict(chance: Chance) -> dict[str, str]:
    options = {
        "model": chance.choice(MODELS),
        "system": chance.choice(SYSTEMS),
        "layout": _written(chance, LAYOUT, LAYOUT_KEYS, chance.choice((0, 0, 1, 2))),
    }
    if chance.random() < 0.1:
        options["model"] = _written(chance, {"layers": "2", "hidden": "64", "heads": "4"}, SHAPE_KEYS)
    changed: tuple[str, ...] = WHAT_IF_KEYS
    kind = chance.random()
    if kind < 0.4:
        options["rl"] = _written(chance, STEP, (*NEEDED, *OPTIONAL))
        changed = (*changed, *RL_CHANGED)
    elif kind < 0.7:
        options["generate"] = _written(chance, REQUEST, GENERATE_KEYS)
        changed = (*changed, *GENERATE_CHANGED)
    elif kind < 0.8:
        options["tokens"] = chance.choice((*VALUES, "100B", "1e9", "300 B", "5M"))
    if chance.random() < 0.4:
        options["what-if"] = _written(chance, {}, changed, 3) or "tp=2"
    if chance.random() < 0.1:
        options["seq"] = _value("seq", chance)
    return options


def _plan(chance: Chance) -> dict[str, str]:
    """A search that is small, because its layout is fixed."""
    options = {
        "model": "gpt2", "system": chance.choice(SYSTEMS), "gpus": "1", "global-batch": "8",
        "fix": "tp=1,pp=1,cp=1,dp=1,mbs=8,zero=0,recompute=none,vpp=1", "precision": "fp32", "stack": "eager",
        "budget": _written(chance, {}, (*BUDGETS, "money"), 3) or "time=30 d",
    }  # fmt: skip
    if chance.random() < 0.3:
        options["nodes"] = chance.choice((*VALUES, "1-", "1-0", "1,2", "1-2-3", "8-4", ",", "1,,2"))
        del options["gpus"]
        if not options["nodes"].strip("0123456789 ") and len(options["nodes"]) > 1:
            options["nodes"] = "1"  # a search of a large machine takes long, and says nothing new of the grammar
    if chance.random() < 0.3:
        options["tokens"] = chance.choice(VALUES)
    if chance.random() < 0.3:
        options["what-if"] = _written(chance, {}, WHAT_IF_KEYS, 2) or "tp=2"
    if chance.random() < 0.2:
        options["walltime"] = chance.choice(VALUES)
    if chance.random() < 0.1:
        options["fix"] = _torn(options["fix"], chance)
    return options


COMMANDS: tuple[tuple[str, Callable[[Chance], dict[str, str]]], ...] = (("predict", _predict),) * 5 + (("plan", _plan),)


def fuzzed_words(chance: Chance) -> bytes:
    """The arguments of a command as JSON; one in five has a torn one."""
    command, made = chance.choice(COMMANDS)
    options = made(chance)
    if chance.random() < 0.2:
        torn = chance.choice([name for name in options if name not in ("system", "stack", "precision", "gpus", "fix")])
        options[torn] = _torn(options[torn], chance)
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return json.dumps([command, *arguments, *(["--json"] if chance.random() < 0.7 else [])]).encode()
