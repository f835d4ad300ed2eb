"""The embedded Redis or Valkey server, for `--embedded`."""
