"""A Redis or Valkey of the proxy's own, for `--embedded`."""
