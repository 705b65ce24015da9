"""Training and evaluating a pointer network on generated problems."""
