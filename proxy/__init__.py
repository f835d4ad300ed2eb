"""expiremember-proxy: member expiry (EXPIREMEMBER) for every Redis and Valkey."""

__version__ = "0.2.0"
