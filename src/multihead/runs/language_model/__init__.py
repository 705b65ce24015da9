"""Training and using a decoder-only language model."""
