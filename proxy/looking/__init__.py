"""`expiremember-proxy deadlines` and `explain`: list deadlines, and explain why a member still exists. Read-only."""
