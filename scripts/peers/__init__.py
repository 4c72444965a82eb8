"""Speed of llama-k3 beside that of other engines, on the same file, in one run."""
