"""Data movement written anew from index maps: the cheapest chain of operators for a map."""
