"""Tests of convert/."""
