"""Fused operations of training, with plain forms in PyTorch."""
