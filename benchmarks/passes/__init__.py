"""What each pass and each rule buys."""
