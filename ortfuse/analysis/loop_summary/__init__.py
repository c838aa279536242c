"""A summary of the body of a Loop or Scan: how each loop-carried value is updated, and what each iteration computes besides."""
