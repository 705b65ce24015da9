"""Training runs: how every run starts, resumes and ends."""
