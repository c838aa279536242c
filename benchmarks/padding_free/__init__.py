"""How fast encoders are without padding, and whether they are right whatever hidden tokens hold."""
