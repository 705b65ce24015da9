"""Look inside: attention maps."""
