"""What two sides say otherwise of the same input: one session at a time, without I/O."""
