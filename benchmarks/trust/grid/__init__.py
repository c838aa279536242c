"""Small models of one operator each, generated from the operators' schemas, and what must hold for them.

`seeds` finds runs of every operator that are known to be valid; `cells` varies them along what the schema allows; `building`
makes models of them, with some operands known and others not; `judge` holds facts against real tensors; `trying` puts a cell to
the test.
"""
