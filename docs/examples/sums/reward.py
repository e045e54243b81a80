"""A reward for the sums of prompts.jsonl. Fields of a line arrive as lists, one element for each answer."""


def reward(completions, answer, **_):
    """1 for the right sum, 0.1 for a wrong number, 0 for anything else."""
    return [score(text.strip(), right) for text, right in zip(completions, answer, strict=True)]


def score(text, right):
    if text == right:
        return {"reward": 1.0, "is_correct": True, "why": "the sum is right"}
    if text.isdecimal():
        return {"reward": 0.1, "is_correct": False, "why": f"{text} is written, and {right} is right"}
    return {"reward": 0.0, "is_correct": False, "why": "no number is written"}
