"""Training and evaluating a document classifier."""
