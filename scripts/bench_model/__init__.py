"""Random GGUF models with real shapes, to measure speed with."""
