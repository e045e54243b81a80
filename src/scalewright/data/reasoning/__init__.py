"""Tasks that a model learns to reason on: problems, prompts, written answers, their verification, and statistics."""
