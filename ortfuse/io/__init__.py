"""Models as files and as objects of other libraries: load, check, repair, save."""
