"""What happens beside training; one callback a file."""
