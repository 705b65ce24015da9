"""Recurrent."""
