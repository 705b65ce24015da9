"""Document classifiers: a pre-trained encoder, or hierarchical attention."""
