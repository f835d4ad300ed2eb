"""Coordination of several proxies in front of one server: each learns the prefixes under which others set deadlines."""
