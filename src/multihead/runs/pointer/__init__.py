"""Pointer."""
