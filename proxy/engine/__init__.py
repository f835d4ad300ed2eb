"""Member expiry inside Redis: the names, the scripts (one .lua file an operation), and the calls."""
