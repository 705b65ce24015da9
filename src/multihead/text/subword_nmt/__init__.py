"""Byte-pair encoding compatible with the subword-nmt package."""
