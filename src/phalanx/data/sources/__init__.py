"""Where samples come from: a file for each kind of source, and one list of them all."""
