"""The checks of `multihead doctor`: text, tokenizers and networks."""
