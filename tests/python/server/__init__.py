"""Tests of the server: engine, service and endpoints."""
