"""Measuring speed the way of llama.cpp's llama-bench: tests, runs, reports and plots."""
