"""Small trainings under plain Keras 3 and under Phalanx, held against one device."""
