"""Models of which one token of the last layer is read: how much work and time is saved by computing no others."""
