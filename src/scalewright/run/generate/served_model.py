"""The model of an engine: one rank's weights in their own precision, filled and replaced by their whole-model names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, nearest
from scalewright.run.generate.float8_weights import STORED, StoredFloat8Linear, quantised_rows, rounded_rows
from scalewright.run.generate.options import WeightPrecision
from scalewright.run.generate.tensor_ranks import TensorRanks, part_box
from scalewright.run.language.model import FeedForward, LinearClass, Transformer, fill_initial
from scalewright.run.language.rotary import LayerConstants

NamedTensors = Iterable[tuple[str, Tensor]]
ROUNDED_BITS: dict[str, int] = {"int4": 4, "int3": 3}


def stored_dtype(precision: WeightPrecision, device: torch.device) -> torch.dtype:
    """What an engine of this precision keeps most of its weights in; fp8 is made from it."""
    is_wide = precision == "fp32" or (precision in ROUNDED_BITS and device.type == "cpu")
    return torch.float32 if is_wide else torch.bfloat16


class ServedModel:
    """Weights without start values. `replace` fills them; `fill_from_seed` gives those that training starts from."""

    def __init__(
        self,
        shape: TransformerShape,
        *,
        constants: LayerConstants,
        precision: WeightPrecision,
        max_context: int,
        device: torch.device,
        ranks: TensorRanks,
    ) -> None:
        check_shape(shape, max_context=max_context)
        self.whole_shape, self.shape = shape, ranks.local_shape(shape)
        self.ranks, self.device = ranks, device
        self._num_bits = ROUNDED_BITS.get(precision, 0)
        self.dtype = stored_dtype(precision, device)
        positions_L = torch.arange(max_context, device=device)
        linear: LinearClass = StoredFloat8Linear if precision == "fp8" else nn.Linear
        self.transformer = _without_storage(self.shape, positions_L, constants, linear)
        whole = _without_storage(shape, positions_L[:1], constants, nn.Linear)
        self._sizes = {name: tuple(param.shape) for name, param in whole.named_parameters()}
        self._allocate()

    @property
    def weight_bytes(self) -> int:
        """Bytes that a decode step reads: all weights, but of untied tables only the rows that tokens name."""
        model = self.transformer
        assert model.embedding is not None
        stored = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *_scales(model))}
        looked_up = [model.embedding.positions] + ([] if self.whole_shape.tied_embeddings else [model.embedding.tokens])
        return sum(stored.values()) - sum(table.weight.nbytes for table in looked_up if table is not None)

    def named_sizes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the whole model with its size."""
        return dict(self._sizes)

    def fill_from_seed(self, seed: int) -> None:
        """The values that a training run with this seed starts from."""

        def values() -> Iterator[tuple[str, Tensor]]:
            for name, size in self._sizes.items():
                empty = torch.empty(size, dtype=torch.float32, device=self.device)
                yield name, fill_initial(name, empty, seed=seed, layers=self.whole_shape.layers)

        self.replace(values(), where="the seed's weights")

    @torch.no_grad()
    def replace(
        self, tensors: NamedTensors, *, where: str, is_whole: bool = True, are_parts: bool = False
    ) -> None:  # fmt: skip
        """Copy weights of the whole model into place. With `is_whole`, every weight must be among them.

        With `are_parts`, each tensor is the part of the weight that this rank stores, and zeros are left out.
        """
        missing = {name for name in self._sizes if not are_parts or self._part_size(name)}
        for name, tensor in tensors:
            self._check(name, tensor, where, are_parts=are_parts)
            missing.discard(name)
            self._copy(name, tensor if are_parts else self.ranks.part(name, tensor))
        if is_whole and missing:
            raise ConfigError(
                f"{where}: lacks {min(missing)} and {len(missing) - 1} more weights of this model; give weights of the "
                "same shape"
                if len(missing) > 1
                else f"{where}: lacks {min(missing)}; give weights of the same shape"
            )

    def _part_size(self, name: str) -> tuple[int, ...] | None:
        """Of the part that this rank stores; None where it stores zeros."""
        box = part_box(name, self._sizes[name], rank=self.ranks.rank, num_ranks=self.ranks.size)
        return None if box is None else tuple(map(len, box))

    def _check(self, name: str, tensor: Tensor, where: str, *, are_parts: bool) -> None:
        if name not in self._sizes:
            near = nearest(name, self._sizes, limit=1)
            raise ConfigError(
                f"{where}: has {name}, which is no weight of this model{f' (it has {near[0]})' if near else ''}; "
                "give weights of the same shape"
            )
        needed = self._part_size(name) if are_parts else self._sizes[name]
        if tuple(tensor.shape) != needed:
            raise ConfigError(
                f"{where}: {name} is {_by(tensor.shape)}, and this model needs {_by(needed or (0,))}; give weights "
                "of the same shape"
            )

    def _copy(self, name: str, values: Tensor) -> None:
        owner_name, _, attribute = name.rpartition(".")
        owner = self.transformer.get_submodule(owner_name)
        if isinstance(owner, StoredFloat8Linear) and attribute == "weight":
            weight, scale_N = quantised_rows(values.to(self.device))
            owner.weight.copy_(weight)
            owner.scale_N.copy_(scale_N)
            return
        target = getattr(owner, attribute)
        if self._num_bits and name.startswith("layers.") and isinstance(owner, nn.Linear) and attribute == "weight":
            values = rounded_rows(values, self._num_bits)
        target.copy_(values)

    def _allocate(self) -> None:
        """Storage for every weight; gate and up products of a layer are one piece, so that one kernel may read both."""
        model, device = self.transformer, self.device
        assert model.head is not None
        for module in list(model.modules()):
            if isinstance(module, FeedForward) and module.gate is not None:
                self._allocate_linears([module.gate, module.up])
            elif isinstance(module, nn.Linear) and module.weight.is_meta and module is not model.head.output:
                self._allocate_linears([module])
            for key, param in list(module.named_parameters(recurse=False)):
                if param.is_meta and module is not model.head.output:
                    module.register_parameter(
                        key, _parameter(torch.empty(param.shape, dtype=self.dtype, device=device))
                    )
        self._allocate_head()

    def _allocate_linears(self, layers: list[nn.Linear]) -> None:
        """Weights and biases of layers with the same input, one after the other in one piece."""
        sizes = [layer.out_features for layer in layers]
        is_8_bit = isinstance(layers[0], StoredFloat8Linear)
        dtype = STORED if is_8_bit else self.dtype
        weight = torch.empty(sum(sizes), layers[0].in_features, dtype=dtype, device=self.device)
        scale_N = torch.empty(sum(sizes), device=self.device) if is_8_bit else None
        bias = None if layers[0].bias is None else torch.empty(sum(sizes), dtype=self.dtype, device=self.device)
        start = 0
        for layer in layers:
            rows = slice(start, start + layer.out_features)
            if isinstance(layer, StoredFloat8Linear) and scale_N is not None:
                layer.store(weight[rows], scale_N[rows])
            else:
                layer.weight = _parameter(weight[rows])
            if bias is not None:
                layer.bias = _parameter(bias[rows])
            start = rows.stop

    def _allocate_head(self) -> None:
        """The head scores its own rows of the vocabulary, of the token table or of a weight of its own."""
        model, rows = self.transformer, self.ranks.rows(self.whole_shape.vocab)
        assert model.head is not None
        assert model.embedding is not None
        if model.tied:
            model.head.output.weight = _parameter(model.embedding.tokens.weight.detach()[rows.start : rows.stop])
        else:
            empty = torch.empty(len(rows), self.whole_shape.hidden, dtype=self.dtype, device=self.device)
            model.head.output.weight = _parameter(empty)


def _parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _scales(model: nn.Module) -> list[Tensor]:
    return [layer.scale_N for layer in model.modules() if isinstance(layer, StoredFloat8Linear)]


def _by(size: Iterable[int]) -> str:
    return " x ".join(map(str, size))


def _without_storage(
    shape: TransformerShape, positions_L: Tensor, constants: LayerConstants, linear: LinearClass
) -> Transformer:
    with torch.device("meta"):
        return Transformer(
            shape, layers=range(shape.layers), positions_L=positions_L, linear=linear, constants=constants
        ).requires_grad_(False)


def check_shape(shape: TransformerShape, *, max_context: int) -> None:
    """Refuse what the engine does not run, and a context that the model has no positions for."""
    lacks = {
        "a mixture of experts": shape.moe is not None,
        "latent attention": shape.mla is not None,
        "an encoder": shape.encoder_layers > 0 or not shape.causal,
        f"{shape.positions} positions": shape.positions not in ("learned", "rotary"),
        "no final norm": not shape.final_norm,
        "a masked-language head": shape.mlm_head or shape.pooler or shape.num_token_types > 0,
    }
    odd = [name for name, is_so in lacks.items() if is_so]
    if odd:
        raise ConfigError(f"the model has {odd[0]}, which the engine does not run: choose a dense GPT, Llama or Qwen")
    if shape.positions == "learned" and max_context > shape.num_positions:
        raise ConfigError(
            f"max_context is {max_context}, and the model has {shape.num_positions} positions: choose at most that"
        )
