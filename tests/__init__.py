"""Tests of the proxy against real servers with real clients."""
