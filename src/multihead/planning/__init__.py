"""Settings of a run: what users may set, and the rules for the rest."""
