"""Keras's and TensorFlow's private names: every one that Phalanx relies on is used here.

Each use names what it answers, and tests/replicas/test_canaries.py fails on the day that
upstream changes one of them.
"""
