"""How good is it: BLEU, chrF."""
