"""Tables and text for the terminal."""
