"""The engine: one thread that runs the sequences of all requests in common batches, with a prefix
cache."""
