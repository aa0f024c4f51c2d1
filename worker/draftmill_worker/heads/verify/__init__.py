"""Checks of variants with a rewritten head or a draft vocabulary."""
