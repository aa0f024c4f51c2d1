"""Stages for tests of the worker. A job's labels say how they behave: {"quantize": "hang"}."""
