"""Subword_nmt."""
