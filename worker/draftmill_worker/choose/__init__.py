"""`format: auto`: which format, and which modules stay as they are, within a budget."""
