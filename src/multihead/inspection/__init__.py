"""Inspect models: attention maps, explanations, tensor shapes."""
