"""Several proxies in front of one server: how each learns the prefixes under which others set deadlines."""
