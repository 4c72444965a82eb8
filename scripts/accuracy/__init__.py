"""How far the logits of each form of the operations, and those of llama.cpp, are from the reference form."""
