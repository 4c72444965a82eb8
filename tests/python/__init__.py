"""Tests of python/llama_k3."""
