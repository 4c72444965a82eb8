"""What tests/bad_files.py is made of: GGUF files as plain data, a tiny valid model, and ways to break it."""
