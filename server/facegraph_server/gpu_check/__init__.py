"""Measure on a GPU what CUDA graphs save and what they cost: ``scripts/gpu_check.py``.

The parts ``frame``, ``memory`` and ``network`` need torch and NumPy and nothing else, see ``bare_machine``.
"""
