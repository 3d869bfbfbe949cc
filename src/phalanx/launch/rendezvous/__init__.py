"""One run on several hosts: a launcher on each, of which the first leads.

The leader decides everything (attempts, restarts, hangs, signals) as it does on one machine. The
others follow: they start workers when it asks, tell it how those end, and end with it.
"""
