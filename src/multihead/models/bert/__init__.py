"""BERT: settings, network, and exchange with Hugging Face's files."""
