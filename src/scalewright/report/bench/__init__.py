"""Tables of micro benchmarks and calibrations."""
