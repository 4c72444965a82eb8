"""The forms of requests."""
