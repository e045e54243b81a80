"""`scalewright reason`: stages of reasoning-model training."""
