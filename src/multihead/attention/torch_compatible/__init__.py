"""Drop-in replacements for torch.nn.MultiheadAttention and its function.

Reading order: module (the class) · functional (the function, and the computation of both) · projection (queries, keys,
values and extra keys) · arguments (PyTorch's masks and error types). This package alone uses PyTorch's conventions:
length first by default, and True = ignore in masks. `multihead.attention` exports both names.
"""
