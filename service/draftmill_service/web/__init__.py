"""The dashboard: pages that the service draws itself.

They show what the use cases, the ledger, the store and the archive answer, and do only what the use cases do.
"""
