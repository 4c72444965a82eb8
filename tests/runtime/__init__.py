"""Tests of llama_k3/ and ggml_k3/."""
