"""``python -m multihead`` runs the command ``multihead``."""

from multihead.cli.main import entry

if __name__ == "__main__":
    entry()
