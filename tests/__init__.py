"""Tests of hybrid_humming; the tiers are explained in CONTRIBUTING.md."""
