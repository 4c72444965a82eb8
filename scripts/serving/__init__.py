"""What the scripts that measure a running llama-server share."""
