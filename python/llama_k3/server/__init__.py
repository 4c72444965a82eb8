"""llama-server: the HTTP interface of one model, on one engine that batches its requests."""
