"""What the programs beside this file share: the run's file, its samples, its model, and errors in one sentence.

The programs run in the environment of their engine: they import that engine and never scalewright. A program ends with
2 where the input is wrong and with 3 where the machine is, after one line that begins with `error: `.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

BAD_INPUT, ENVIRONMENT, REQUEUE = 2, 3, 75
SYNTHETIC = "synthetic"
WRITTEN = "samples.npy"
NUM_SYNTHETIC_TOKENS = 2**20
MEGATRON_SUFFIX = ".bin"
INDEX_MAGIC = b"MMIDIDX\x00\x00"
INDEX_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32,
               8: np.uint16}  # fmt: skip
"""Codes of token types in a Megatron index (megatron/core/datasets/indexed_dataset.py)."""


def read_config() -> dict[str, Any]:
    """The run's file that `--config` names. Words that follow are left in `extra_args`."""
    Notice.listen()
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    known, extra = parser.parse_known_args()
    try:
        config = json.loads(Path(known.config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{known.config}: cannot be read as the file of a run ({error}); render it again")
    config["folder"] = str(Path(known.config).resolve().parent)
    config["extra_args"] = [*config.get("extra_args", []), *extra]
    return dict(config)


def fail(sentence: str, code: int = BAD_INPUT) -> NoReturn:
    """End this process with one sentence; every rank says it, and the launcher shows the first."""
    sys.stdout.flush()
    sys.stderr.write(f"error: {' '.join(sentence.split())}\n")
    sys.stderr.flush()
    os._exit(code)


def leave(code: int = 0) -> NoReturn:
    """End a process whose work is done. Threads that libraries leave behind can abort the interpreter's own end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Notice:
    """The request to save and leave, which the job script passes on as USR1 before a time limit or preemption."""

    _is_given = False
    """Of this process; it is listened to from the start, because engines start for minutes."""

    @classmethod
    def listen(cls) -> None:
        signal.signal(signal.SIGUSR1, cls._take)

    @classmethod
    def _take(cls, *_: Any) -> None:
        cls._is_given = True

    def is_given(self, device: Any) -> bool:
        """Whether any rank got it: the signal reaches ranks in different steps, and all leave after the same one."""
        import torch

        if num_ranks() == 1 or not torch.distributed.is_initialized():
            return self._is_given
        flag = torch.tensor([float(self._is_given)], device=device)
        torch.distributed.all_reduce(flag)
        return bool(flag.item() > 0)

    def leave(self, step: int) -> NoReturn:
        """After the save: the job script queues the job again."""
        say(f"stopped by SIGUSR1 after a whole step; {step} steps are saved")
        leave(REQUEUE)


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def num_ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def say(text: str) -> None:
    """A line of the log, from the first rank only."""
    if rank() == 0:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class TokenWindows:
    """Windows of `length + 1` tokens, by number.

    `samples.npy` beside the run's file holds those of a short run in the order of scalewright's own trainer, so that
    every engine sees the same ones in every step. Without it they follow from data and seed, in an order of their own.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.length = int(config["sequence"])
        self.vocab = int(config["model"]["vocab_size"])
        self._seed = int(config["seed"])
        layout = config["layout"]
        self.gbs, self.mbs, self.dp = (int(layout[name]) for name in ("gbs", "mbs", "dp"))
        self._name = config["data"] or SYNTHETIC
        written = Path(config["folder"]) / WRITTEN
        self._windows = np.load(written, mmap_mode="r", allow_pickle=False) if written.is_file() else None
        if self._windows is not None:
            self.num = len(self._windows)
            return
        self._tokens = self._all_tokens()
        self.num = (len(self._tokens) - 1) // self.length
        if self.num < 1:
            fail(f"{self._name}: has {len(self._tokens)} tokens, fewer than one sample of {self.length}; give more")
        self._order = np.empty(0, dtype=np.int64)
        self._pass = -1

    def _all_tokens(self) -> np.ndarray:
        if self._name == SYNTHETIC:
            return synthetic_tokens(self.vocab, self._seed)
        return stored_tokens(Path(self._name))

    def sample(self, index: int) -> np.ndarray:
        """The `index`-th window that training sees, counted over all passes."""
        number, place = divmod(index, self.num)
        if self._windows is not None:
            return np.asarray(self._windows[place], dtype=np.int64)
        if number != self._pass:
            self._order = np.random.default_rng([self._seed, number]).permutation(self.num)
            self._pass = number
        start = int(self._order[place]) * self.length
        window = np.asarray(self._tokens[start : start + self.length + 1], dtype=np.int64)
        if int(window.max()) >= self.vocab or int(window.min()) < 0:
            fail(
                f"{self._name}: token {int(window.max())} is outside the model's vocabulary of {self.vocab}; give data "
                "made with this model's tokenizer"
            )
        return window

    def micro_batch(self, step: int, micro: int, dp_rank: int) -> np.ndarray:
        """Windows of one micro-batch of one copy of the model."""
        first = step * self.gbs + (micro * self.dp + dp_rank) * self.mbs
        return np.stack([self.sample(index) for index in range(first, first + self.mbs)])

    def micro_batches(self, dp_rank: int, *, first_step: int = 0) -> Iterator[np.ndarray]:
        """All micro-batches of a copy, step after step."""
        step = first_step
        while True:
            for micro in range(self.gbs // (self.dp * self.mbs)):
                yield self.micro_batch(step, micro, dp_rank)
            step += 1


def synthetic_tokens(vocab: int, seed: int) -> np.ndarray:
    """Random tokens with the frequencies of text: the k-th about 1/k."""
    generator = np.random.default_rng([seed, vocab])
    shares = 1.0 / np.arange(1, vocab + 1)
    edges = np.cumsum(shares / shares.sum())
    drawn = np.searchsorted(edges, generator.random(NUM_SYNTHETIC_TOKENS)).clip(max=vocab - 1)
    return np.asarray(drawn.astype(np.uint32))


def stored_tokens(path: Path) -> np.ndarray:
    """Tokens of a .npy file, or of Megatron's .bin with its .idx beside it."""
    if path.suffix == MEGATRON_SUFFIX or path.with_name(path.name + MEGATRON_SUFFIX).is_file():
        return _megatron_tokens(path if path.suffix == MEGATRON_SUFFIX else path.with_name(path.name + MEGATRON_SUFFIX))
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        fail(f"{path}: cannot be read as a .npy file of token ids ({error}); write it with numpy.save")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        fail(f"{path}: does not hold a one-dimensional array of whole numbers; write token ids with numpy.save")
    return np.asarray(tokens)


def _megatron_tokens(path: Path) -> np.ndarray:
    index = path.with_suffix(".idx")
    try:
        with index.open("rb") as file:
            head = file.read(len(INDEX_MAGIC) + 9)
    except OSError as error:
        fail(f"{index}: cannot be read ({error.strerror}); Megatron's data are two files, .bin and .idx")
    code = head[-1] if head.startswith(INDEX_MAGIC) and len(head) == len(INDEX_MAGIC) + 9 else 0
    if code not in INDEX_TYPES:
        fail(f"{index}: is not the index of Megatron's indexed data set; make it with its preprocess_data.py")
    return np.memmap(path, dtype=INDEX_TYPES[code], mode="r")


def hugging_face_model(config: dict[str, Any], dtype: Any = None) -> Any:
    """The model of the run's file: random weights of the seed, or those of the folder `load`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    body = {key: value for key, value in config["model"].items() if value is not None}
    model_config = AutoConfig.for_model(**body)
    torch.manual_seed(int(config["seed"]))
    dtype = dtype or torch.float32
    if not config["load"]:
        with torch.device(start_device(config)):
            return AutoModelForCausalLM.from_config(model_config, dtype=dtype)
    check_weights(config)
    return AutoModelForCausalLM.from_pretrained(config["load"], dtype=dtype)


def start_device(config: dict[str, Any]) -> str:
    """Where random weights are made: on the GPU, which takes no time, unless it holds a part of the model only."""
    import torch

    if config["device"] == "cpu" or int(config["layout"]["zero"]) > 1:
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


def check_weights(config: dict[str, Any]) -> None:
    """Refuse weights of another shape before a model is built."""
    path = Path(config["load"]) / "config.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{path}: cannot be read ({error}); --load names a Hugging Face folder")
    for key in ("model_type", "hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head",
                "num_key_value_heads", "intermediate_size", "vocab_size"):  # fmt: skip
        expected, given = config["model"].get(key), stored.get(key)
        if expected is not None and given is not None and expected != given:
            fail(
                f"--load {config['load']!r}: its {key} is {given}, the model's is {expected}; give the weights of this "
                "model"
            )


def parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices are decayed, vectors are not."""
    trained = [one for one in model.parameters() if one.requires_grad]
    return [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": weight_decay},
        {"params": [one for one in trained if one.dim() <= 1], "weight_decay": 0.0},
    ]


def small_tokenizer(config: dict[str, Any]) -> Any:
    """The tokenizer that the run names; else one whose tokens are `t0`, `t1`, ..., as many as the model has."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if config["tokenizer"]:
        return AutoTokenizer.from_pretrained(config["tokenizer"])
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {f"t{number}": number for number in range(int(config["model"]["vocab_size"]))}
    made = Tokenizer(models.WordLevel(vocab=vocab, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="t0", pad_token="t0", eos_token="t1")
