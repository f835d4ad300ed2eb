"""Several proxies in front of one server: how each knows the keys to which another gives deadlines."""
