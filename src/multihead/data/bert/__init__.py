"""Pre-training data of a BERT: from documents to masked batches."""
