"""Several proxies in front of one server: the protocol by which each knows the keys to which another gives deadlines."""
