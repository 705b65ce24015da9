"""The Translator: search settings, batching, from text to text."""
