"""GRPO in separate roles: a controller that keeps the rollouts, engines that write them, a trainer that learns."""
