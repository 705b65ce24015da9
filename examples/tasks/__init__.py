"""Sequence tasks for which the correct attention is known."""
