"""Which operators are left outside fusions, beside those that another commit leaves; and whether results are right."""
