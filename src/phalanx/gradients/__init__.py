"""The pipeline every gradient walks: weigh by samples, reduce, then clip and apply."""
