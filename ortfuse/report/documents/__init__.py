"""The documents of commands, each for a page and for the terminal."""
