"""What an attempt is worth when the next thing comes: the table, and what carries it out."""
