"""`expiremember-proxy deadlines` and `explain`: list when members expire, and explain why a member still exists.
Read-only."""
