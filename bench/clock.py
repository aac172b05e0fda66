"""A clock that moves only when told how long the device ran: pytest-benchmark's `timer`."""


class DeviceClock:
    """Seconds of device time so far; called by pytest-benchmark before and after each round."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def advance_us(self, microseconds: float) -> None:
        """Move forward by what the device took."""
        self.seconds += microseconds * 1e-6
