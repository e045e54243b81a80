"""Count what one training step of a residual network keeps in memory, with PyTorch's own tracker; no device is needed.

    .venv/bin/python benchmarks/vision_memory.py --write

Tensors are fake (shapes without storage), so the counts are exact and take seconds. Not counted: what the convolution
library allocates for itself, and what the allocator rounds up.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

RESULTS = Path(__file__).parent / "results" / "resnet_memory.jsonl"
BATCHES = (64, 256, 512)


class Basic(nn.Module):
    """As torchvision's: two 3x3; ReLU and the shortcut's sum in place."""

    EXPANSION = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width))
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(channels, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.relu(self.first(x)))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


class Bottleneck(nn.Module):
    """As torchvision's, stride on the 3x3; ReLU and the shortcut's sum in place."""

    EXPANSION = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = self.EXPANSION * width
        self.first = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width))
        self.third = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(channels, out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.third(self.relu(self.second(self.relu(self.first(x)))))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


def shortcut(channels: int, out: int, stride: int) -> nn.Module | None:
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


MODELS: dict[str, tuple[type[Basic | Bottleneck], tuple[int, ...]]] = {
    "resnet-18": (Basic, (2, 2, 2, 2)),
    "resnet-50": (Bottleneck, (3, 4, 6, 3)),
}


def resnet(name: str) -> nn.Module:
    kind, blocks = MODELS[name]
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, num_blocks in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(num_blocks):
            layers.append(kind(channels, width, 2 if block == 0 and stage > 0 else 1))
            channels = kind.EXPANSION * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def tracked(name: str, batch: int, *, autocast: bool) -> dict[str, str | int | bool]:
    """Peak of the second step, when the optimizer has its state."""
    with FakeTensorMode():
        model = resnet(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        images, labels = torch.randn(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, images, labels)
        with tracker:
            for step in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = nn.functional.cross_entropy(model(images).float(), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if step == 0:
                    tracker.reset_mod_stats()
        peak = next(iter(tracker.get_tracker_snapshot("peak").values()))
    named = {str(key).rpartition(".")[2]: int(value) for key, value in peak.items()}
    return {
        "model": name, "batch": batch, "autocast": autocast, "peak_bytes": named["Total"],
        "activation_bytes": named["ACT"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the memory of a residual network's step.")
    parser.add_argument("--write", action="store_true", help=f"replace {RESULTS.name}")
    args = parser.parse_args()
    rows = [tracked(name, batch, autocast=cast) for name in MODELS for batch in BATCHES for cast in (False, True)]
    text = "".join(json.dumps({"torch": torch.__version__, **row}) + "\n" for row in rows)
    print(text, end="")
    if args.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
