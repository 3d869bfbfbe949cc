"""What happened in a run, as data: records, and the event files that TensorBoard shows."""
