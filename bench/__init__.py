"""Benches: ours and the peers timed side by side on a GPU. Not shipped in the wheel; run from a checkout (see README.md)."""
