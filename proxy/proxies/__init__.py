"""Coordinate several proxies of one server: each proxy learns the prefixes under which others set deadlines."""
