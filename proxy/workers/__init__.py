"""Several processes that are one proxy: `--workers`."""
