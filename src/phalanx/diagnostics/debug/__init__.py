"""Finding out what went wrong in a training: replaying a step that was not finite."""
