"""The checks of `multihead doctor`, and the facts of `multihead env`."""
