"""Metrics: BLEU, chrF and TER with significance tests; accuracy and F1."""
