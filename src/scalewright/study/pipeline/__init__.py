"""Pipelines: stages of reasoning-model training that follow each other, with gates between them."""
