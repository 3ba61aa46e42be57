"""Pure record processing: one stage for each source topic."""
