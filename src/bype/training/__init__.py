"""Training: the configuration, the loop, and a run directory that can be continued to the bit."""
