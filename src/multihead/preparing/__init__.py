"""From the user's text files to a vocabulary and stored token ids."""
