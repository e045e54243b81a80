"""The runs that `calibrate --engine` fits a training program's stack to: at most five short ones of small Llamas.

Each is bound by something else: the host, products with their element-wise work, the update of many weights, attention.
The last one lies between them. Without it, a factor that one run alone decides cannot be judged by the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright.workload.run_options import DeviceKind

HEAD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePoint:
    """One short run: a Llama's sizes, and its micro-batch."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.layers}x{self.hidden}-s{self.seq}-b{self.batch}"

    def config(self) -> dict[str, Any]:
        """The config.json of the model, as every engine reads it."""
        return HEAD | {
            "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.heads, "vocab_size": self.vocab,
            "max_position_embeddings": self.seq, "tie_word_embeddings": False, "rope_theta": 10000.0,
        }  # fmt: skip

    def layout(self, num_ranks: int, zero: int) -> str:
        return f"dp={num_ranks},mbs={self.batch},gbs={self.batch * num_ranks},zero={zero}"


GPU_POINTS = (
    EnginePoint(layers=12, hidden=768, heads=12, ffn=2048, vocab=32000, seq=1024, batch=1),
    EnginePoint(layers=8, hidden=2048, heads=16, ffn=5632, vocab=32000, seq=2048, batch=6),
    EnginePoint(layers=16, hidden=1536, heads=12, ffn=4096, vocab=32000, seq=2048, batch=1),
    EnginePoint(layers=6, hidden=1024, heads=16, ffn=2816, vocab=32000, seq=8192, batch=2),
    EnginePoint(layers=4, hidden=3072, heads=24, ffn=8192, vocab=32000, seq=1024, batch=4),
)
CPU_POINTS = (
    EnginePoint(layers=6, hidden=96, heads=4, ffn=256, vocab=512, seq=64, batch=1),
    EnginePoint(layers=2, hidden=384, heads=6, ffn=1024, vocab=2048, seq=256, batch=4),
    EnginePoint(layers=3, hidden=256, heads=4, ffn=704, vocab=8192, seq=128, batch=1),
    EnginePoint(layers=2, hidden=128, heads=4, ffn=352, vocab=512, seq=1024, batch=2),
    EnginePoint(layers=4, hidden=192, heads=4, ffn=512, vocab=1024, seq=128, batch=4),
)


def engine_points(device: DeviceKind) -> tuple[EnginePoint, ...]:
    """The runs of a device, the most useful first."""
    return CPU_POINTS if device == "cpu" else GPU_POINTS
