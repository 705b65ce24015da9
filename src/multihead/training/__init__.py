"""Training: loop, updates, optimizers, checkpoints, several processes."""
