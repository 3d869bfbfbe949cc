"""Horovod as what adds up the replicas: one process, one replica, one device."""
