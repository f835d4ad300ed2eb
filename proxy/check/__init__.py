"""`expiremember-proxy check`: whether a proxy with these settings can do its work here, and what to do if not."""
