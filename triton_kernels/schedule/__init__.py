"""Which tile a program computes, and which part of K."""
