"""Acceptance length, measured in a real engine: boots, prompts, counters, statistics, gate."""
