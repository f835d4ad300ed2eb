"""Run the command line: python -m proxy."""

from proxy.entry import main

if __name__ == "__main__":
    main()
