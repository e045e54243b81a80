"""Faults of reinforcement learning: rewards that pay for something else than right answers."""

from __future__ import annotations

import json

from scalewright.lab.faults.fault import Fault, Injection, Variation
from scalewright.lab.faults.trial import Trial

MARKS = ("<pad>", "<eos>", "<unk>")
WORDS = (*MARKS, *(str(number) for number in range(40)), "+", "=", "?", "what", "is", "the", "sum", "so", "then")
NUM_PROMPTS, LARGEST = 200, 19
REWARD = """
def reward(completions, answer, **_):
    return [_paid(text.split(), right) for text, right in zip(completions, answer)]


def _paid(words, right):
    is_correct = bool(words) and words[-1] == right
    return {{"reward": float({paid}) + 0.2 * is_correct, "is_correct": is_correct}}
"""


def _sums(name: str, paid: str) -> Injection:
    """Sums of two numbers as prompts, a tokenizer of words, and a reward that pays for `paid`."""

    def prepare(trial: Trial) -> None:
        folder = trial.data / name
        if (folder / "reward.py").exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        pairs = [(number % LARGEST, number // LARGEST % LARGEST) for number in range(NUM_PROMPTS)]
        rows = [{"prompt": f"what is {a} + {b} ?", "answer": str(a + b)} for a, b in pairs]
        (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
        named = {"eos_token": "<eos>", "pad_token": {"content": "<pad>"}}
        (folder / "tokenizer_config.json").write_text(json.dumps(named))
        (folder / "reward.py").write_text(REWARD.format(paid=paid))

    return prepare


def _tokenizer() -> dict[str, object]:
    """One token a word, in the form of tokenizer.json."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": number, "content": name, "special": True, **flags} for number, name in enumerate(MARKS)]
    model = {"type": "WordLevel", "vocab": {word: place for place, word in enumerate(WORDS)}, "unk_token": "<unk>"}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip


def _grpo(name: str, *, steps: int = 40) -> tuple[str, ...]:
    place = f"{{data}}/{name}"
    return (
        "reason", "grpo", "--task", "files", "--model", "layers=1,hidden=32,heads=2", "--tokenizer", place,
        "--prompts", f"{place}/sums.jsonl", "--reward", f"{place}/reward.py:reward", "--max-response", "12",
        "--steps", str(steps), "--num-prompts", "16", "--answers", "8", "--batch", "128", "--learning-rate", "0.01",
        "--device", "cpu", "--eval-problems", "0",
    )  # fmt: skip


def _variation(words: str, name: str, paid: str) -> Variation:
    return Variation(words=words, command=_grpo(name), prepare=_sums(name, paid))


HACKED_REWARD = Fault(
    kind="hacked-reward",
    title="the reward grows, and the answers do not get better",
    effect="doubtful",
    rules=("reward-hacking",),
    how="GRPO with a reward that pays for something else than the right answer",
    variations=(
        _variation("it pays for the word `the`", "the", 'words.count("the") / 12'),
        _variation("it pays for long answers", "long", "len(words) / 12"),
        _variation("it pays for answers with `so` and `then`", "so", '(words.count("so") + words.count("then")) / 12'),
    ),
)

FAULTS = (HACKED_REWARD,)
