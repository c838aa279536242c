"""The graph: loading, saving, conversion from and to other model kinds, symbolic dimensions and facts."""
