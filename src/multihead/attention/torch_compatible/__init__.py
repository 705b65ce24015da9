"""Drop-in replacements for torch.nn.MultiheadAttention."""
