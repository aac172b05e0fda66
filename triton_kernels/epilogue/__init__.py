"""Everything between the accumulator and the store."""
