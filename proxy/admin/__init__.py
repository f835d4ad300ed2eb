"""The admin port: probes, metrics and a drain over HTTP."""
