"""`python -m ortfuse` is the command `ortfuse`."""

from ortfuse.cli.app import main

if __name__ == "__main__":
    main()
