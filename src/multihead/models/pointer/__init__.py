"""Pointer networks: the output is a sequence of input positions."""
