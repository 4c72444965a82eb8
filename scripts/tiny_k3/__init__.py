"""A small trainable Kimi-K3: dialogues, tokenizer, torch model, optimiser, HF export and evaluation."""
