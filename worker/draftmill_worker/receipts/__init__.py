"""Receipts of engine boots: what is collected, the rules it must satisfy, and the archive it is written to.

Reading the archive, proving it and comparing receipts need no worker: see `draftmill.archive`.
"""
