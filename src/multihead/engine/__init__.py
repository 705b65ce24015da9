"""The compiled search of a Transformer's translations: `weights` says what it takes, `search` runs it."""
