"""Fused or faster operations, each beside its plain form."""
