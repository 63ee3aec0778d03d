"""The run directory: what training writes, and what everything after it opens."""
