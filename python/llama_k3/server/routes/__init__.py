"""The endpoints, a router for each API."""
