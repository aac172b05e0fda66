"""Scales and zero points: where a tile finds its own, and what their stored bits mean."""
