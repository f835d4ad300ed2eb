"""`expiremember-proxy check`: test whether a proxy with these settings can work here, and say what to do if not."""
