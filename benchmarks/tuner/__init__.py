"""Does the tuner find more than a fixed list, and than random search in the same time?"""
