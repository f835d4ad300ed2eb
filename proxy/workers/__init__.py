"""Run one proxy as several processes: `--workers`."""
