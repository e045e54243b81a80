"""Small models of three families, and the plain forward pass that engines are compared with."""

from __future__ import annotations

from datetime import date
from typing import Any

import torch
from torch import Tensor

from scalewright.catalog.facts import Source
from scalewright.catalog.types import TransformerShape
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import GREEDY, Request
from scalewright.run.language.model import Transformer, fill_initial
from scalewright.run.language.rotary import LayerConstants

CPU = torch.device("cpu")
CONTEXT = 48
SOURCE = Source(kind="assumed", text="a small model for tests", checked=date(2026, 11, 16))
COMMON: dict[str, Any] = {"source": SOURCE, "layers": 2, "hidden": 32, "vocab": 97, "seq": CONTEXT}
LLAMA_LIKE: dict[str, Any] = {
    "gated": True, "positions": "rotary", "norm": "rmsnorm", "norm_bias": False, "out_bias": False, "ffn_bias": False,
    "ffn_hidden": 48,
}  # fmt: skip
SHAPES = {
    "gpt": TransformerShape(**COMMON, heads=4, kv_heads=4, head_dim=8, ffn_hidden=64, num_positions=CONTEXT),
    "llama": TransformerShape(
        **COMMON, **LLAMA_LIKE, heads=4, kv_heads=2, head_dim=8, qkv_bias=False, tied_embeddings=False
    ),
    "qwen": TransformerShape(**COMMON, **LLAMA_LIKE, heads=4, kv_heads=2, head_dim=16, qk_norm=True),
}


def weights_of(shape: TransformerShape, *, seed: int = 0) -> dict[str, Tensor]:
    """Random weights, ten times as large as training starts with, so that attention matters."""
    with torch.device("meta"):
        model = Transformer(shape, layers=range(shape.layers), positions_L=torch.arange(1, device="cpu"))
    filled = {}
    for name, param in model.named_parameters():
        values = fill_initial(name, torch.empty(param.shape), seed=seed, layers=1)
        noise = torch.Generator().manual_seed(len(name))
        filled[name] = values * 10 if param.dim() > 1 else values + 0.1 * torch.randn(param.shape, generator=noise)
    return filled


def engine_of(name: str, *, seed: int = 0, **options: Any) -> Engine:
    shape = SHAPES[name]
    chosen: dict[str, Any] = {"max_context": CONTEXT, "precision": "fp32", "max_running": 8} | options
    return open_engine(shape, EngineOptions(**chosen), device=CPU, weights=weights_of(shape, seed=seed).items())


class PlainModel:
    """The model of training, whole sequences at once."""

    def __init__(self, name: str, *, seed: int = 0, constants: LayerConstants | None = None) -> None:
        self.shape, self.constants = SHAPES[name], constants
        self.weights = weights_of(self.shape, seed=seed)

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> Tensor:
        """Scores after each token."""
        model = Transformer(
            self.shape,
            layers=range(self.shape.layers),
            positions_L=torch.arange(len(tokens)),
            constants=self.constants,
        )
        model.load_state_dict(self.weights, strict=False)
        scores: Tensor = model(torch.tensor([tokens]))[0]
        return scores

    def likeliest(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> tuple[tuple[int, ...], list[float]]:
        """The likeliest token before each token of the answer, with its log-probability. An answer that is equal to
        these is the greedy one, token by token."""
        best = self.logits([*prompt, *answer])[len(prompt) - 1 : -1].log_softmax(dim=-1).max(dim=-1)
        return tuple(best.indices.tolist()), best.values.tolist()

    def greedy(self, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tuple(tokens[len(prompt) :])


def request(name: str, prompt: tuple[int, ...], num_tokens: int, **others: Any) -> Request:
    return Request(id=name, prompt=prompt, max_new_tokens=num_tokens, **({"sampling": GREEDY} | others))
