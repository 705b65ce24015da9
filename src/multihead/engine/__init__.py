"""A Transformer's translations, fast: compiled (`weights` says what it takes, `search` runs it), or by `graphs`."""
