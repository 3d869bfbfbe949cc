"""One run on several nodes: a launcher on each, of which the first is the leader.

The leader makes all decisions (attempts, restarts, hangs, signals) as it does on one machine. The
followers start workers on its request, report how those end, and end with the leader.
"""
