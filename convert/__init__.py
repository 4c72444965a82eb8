"""Converter from Hugging Face checkpoints of Kimi-K3 and Kimi-Linear to GGUF."""
