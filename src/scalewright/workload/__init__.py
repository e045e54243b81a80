"""What is trained and how it is split: model, stage, layout, precision, batch and FLOP counts."""
