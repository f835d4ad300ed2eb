"""The image, run as it is deployed: needs a container daemon, which CI starts by `.ci/containers`."""
