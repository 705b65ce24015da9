"""Torch_compatible."""
