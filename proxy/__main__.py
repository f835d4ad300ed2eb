"""Runs the command line: python -m proxy."""

from proxy.cli import main

if __name__ == "__main__":
    main()
