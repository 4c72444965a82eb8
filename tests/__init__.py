"""Tests, their reference model and their oracles."""
