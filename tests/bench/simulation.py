"""A GPU that exists on paper: a call takes the microseconds that it says, with drift and noise from a seeded generator."""

import random


class Kernel:
    """A call of `us` microseconds. While a graph is captured it lands on the tape, otherwise it runs eagerly."""

    def __init__(self, gpu, us):
        self.gpu, self.us = gpu, us

    def __call__(self):
        self.gpu.tape.append(self)


class SimulatedGpu:
    """Backend whose replays take sum(kernel.us) * clock * noise. `drift`: how much slower the clock is after each replay."""

    def __init__(self, *, noise=0.0, drift=0.0, seed=0):
        self.noise, self.drift, self.clock = noise, drift, 1.0
        self.random = random.Random(seed)
        self.tape, self.warmed, self.graphs, self.replayed = [], [], [], []

    def kernel(self, us):
        return Kernel(self, us)

    def warm(self, calls):
        for call in calls:
            call()
        self.warmed += self.tape
        self.tape = []

    def capture(self, calls):
        for call in calls:
            call()
        graph, self.tape = list(self.tape), []
        self.graphs.append(graph)
        return graph

    def replay_us(self, graph):
        self.replayed.append(graph)
        self.clock *= 1 + self.drift
        return sum(kernel.us for kernel in graph) * self.clock * (1 + self.random.gauss(0, self.noise))
