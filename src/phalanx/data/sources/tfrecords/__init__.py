"""TFRecord files: found, indexed, read as a stream or by number, and written."""
