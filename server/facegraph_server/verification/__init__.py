"""Prove that the models run as CUDA graphs and that the graphs change nothing: ``scripts/verify_graphs.py``."""
