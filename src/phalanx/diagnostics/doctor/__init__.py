"""Is this machine fit for training, or a script for a kind of machine that is not at hand?"""
