"""Heads: capture of hidden states, quantization by them, draft vocabularies, and the directories they end in."""
