"""Tables and text for the terminal, one module a command."""
