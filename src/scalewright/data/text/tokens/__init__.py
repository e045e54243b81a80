"""Texts as tokens: the tokenizer, benchmarks' n-grams, packing and order."""
