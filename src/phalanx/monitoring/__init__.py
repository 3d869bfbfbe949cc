"""What happened, as data: events, phases, flight recorder, throughput. No TensorFlow."""
