"""Trainer, engines and controller of one run as roles of their own: started, watched and started again."""
