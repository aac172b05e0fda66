"""Gluon kernels for SM90: weights stream as packed fragments and are decoded straight into the operand registers of the MMA."""
