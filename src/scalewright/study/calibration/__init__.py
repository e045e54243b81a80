"""The calibrate study: micro benchmarks and short training runs within a time budget, then one calibration file."""
