"""Small models in all the ways in which files differ: what the runtime loads must be optimised, or left as it is."""
