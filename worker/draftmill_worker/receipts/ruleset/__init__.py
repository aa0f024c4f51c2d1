"""The rules of a receipt, by what they look at."""
