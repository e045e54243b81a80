"""Every fault and every healthy control of the laboratory."""

from __future__ import annotations

from scalewright.lab.faults.fault import Control, Fault
from scalewright.lab.faults.injections import linked
from scalewright.lab.faults.kinds import cluster, data, ended, learning, rewards, slowed
from scalewright.lab.faults.workloads import TINY_MODEL, generate, images, language, sft, vision

FAULTS: tuple[Fault, ...] = (
    *slowed.FAULTS,
    *data.FAULTS,
    *ended.FAULTS,
    *learning.FAULTS,
    *rewards.FAULTS,
    *cluster.FAULTS,
)

CONTROLS = (
    Control(name="language-1-rank", command=language(ranks=1)),
    Control(name="language-2-ranks", command=language(ranks=2)),
    Control(name="language-sharded", command=language(layout="dp=2,mbs=4,gbs=8,zero=3", steps=30)),
    Control(name="language-tensor-parallel", command=language(layout="tp=2,dp=1,mbs=4,gbs=4", steps=30)),
    Control(name="language-accumulation", command=language(ranks=1, mbs=8, gbs=32, steps=30)),
    Control(
        name="language-checkpoints",
        command=language("--checkpoint-every", "20", ranks=1, model=TINY_MODEL, steps=60),
    ),
    Control(name="language-on-links", command=language(steps=24), inject=linked(2, None)),
    Control(name="vision-synthetic", command=vision(ranks=1, steps=20)),
    Control(name="vision-2-ranks", command=vision(ranks=2, steps=12)),
    Control(
        name="vision-shards", command=vision(data="{data}/shards", steps=12), prepare=images("shards"),
    ),
    Control(name="generate-even", command=generate(num=32)),
    Control(name="fine-tuning", command=sft(steps=80)),
    Control(name="fine-tuning-2-ranks", command=sft(steps=60, ranks=2)),
)  # fmt: skip
