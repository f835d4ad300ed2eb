"""`expiremember-proxy deadlines` and `explain`: what expires when, and why a member is still there. Read-only."""
