"""Training a translator: start, batches, validation, the whole run."""
