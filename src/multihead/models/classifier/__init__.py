"""Document classifiers."""
