"""Translating."""
